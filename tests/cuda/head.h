/* Shapes for the tiles of head (tests/cuda.c). */
