#!/bin/sh
# gdb shows tensors and graphs (tools/gdb/zeroflow.py): sh tests/consumers/gdb.sh COMPILER...
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/program.c" << 'END'
#define ZEROFLOW_IMPLEMENTATION
#include "zeroflow.h"

static int stop(zf_graph *g, zf_tensor x, zf_tensor y) { return zf_valid(x) && zf_valid(y) && g; }

int main(void)
{
    zf_graph *g = zf_graph_new(NULL);
    zf_tensor x = zf_input(g, "x", ZF_F32, ZF_SHAPE(32, 2)), y;
    zf_push(g, "encoder");
    y = zf_relu(zf_nn_linear(x, "fc", 64, NULL));
    zf_pop(g);
    return !stop(g, x, y);
}
END
"$@" -g -O0 -I. "$work/program.c" -o "$work/program" -lm -lpthread
gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'source tools/gdb/zeroflow.py' -ex 'break stop' \
    -ex run -ex 'print x' -ex 'print y' -ex 'print g->nodes[x.id].shape' -ex 'print (zf_tensor){0}' \
    -ex 'zf-graph g' "$work/program" > "$work/said" 2>&1
cat "$work/said"
grep -Eq '^\$1 = %1 input f32\[32,2\] "x"$' "$work/said"
grep -Eq '^\$2 = %[0-9]+ relu f32\[32,64\] in encoder$' "$work/said"
grep -Eq '^\$3 = \[32,2\]$' "$work/said"
grep -Eq '^%[0-9]+ = relu %[0-9]+ : f32\[32,64\]' "$work/said"
