#!/bin/sh
# Prints the sources of the unit tests, as build/tests is made of them: sh tests/house/units.sh
#
# The folders that are left out have tests of another program; those in inside/ are parts of unit.c.
ls tests/*/*.c | grep -vE '^tests/(consumers|cuda|docs|emulation|fuzz|hip|inside|mpi)/'
echo tests/inside/unit.c
