/* Shapes for the tiles of update (tests/cuda.c). */
