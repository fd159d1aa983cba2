/* Shapes for the tiles of norm (tests/cuda.c). */
