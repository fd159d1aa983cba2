"""gdb shows graphs: `source tools/gdb/zeroflow.py` in gdb, or in ~/.gdbinit.

    (gdb) print h
    $1 = %7 relu f32[32,64] in encoder.0
    (gdb) print g->nodes[4]
    $2 = param f32[2,64] "hidden.weight"
    (gdb) print x.graph
    $3 = (zf_graph *) 0x5555558292a0
    (gdb) zf-graph x.graph

A tensor is its number, operator, type, name and scope, and its place after the memory pass. zf-graph
prints the whole graph as zf_graph_print does, by a call of the program, which must run. The program
is built with `make debug`, or with -g and the implementation in one of its files."""

import gdb
import gdb.printing


def constant(name):
    """relu of ZF_OP_relu, f32 of ZF_F32."""
    name = str(name)
    return name[6:] if name.startswith('ZF_OP_') else name[3:].lower()


def shape_text(shape):
    rank = int(shape['rank'])
    if rank < 0:
        return 'no shape'
    return '[' + ','.join(str(int(shape['dims'][k])) for k in range(rank)) + ']'


def node_text(node):
    parts = [constant(node['op']), constant(node['dtype']) + shape_text(node['shape'])]
    if int(node['name']):
        parts.append('"%s"' % node['name'].string())
    if int(node['scope']) and node['scope'].string():
        parts.append('in ' + node['scope'].string())
    if node['placed']:
        parts.append('@%d+%d' % (int(node['offset']), int(node['bytes'])))
    if node['update']:
        parts.append('update')
    return ' '.join(parts)


class Shape:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return shape_text(self.value)


class Node:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return node_text(self.value)


class Tensor:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        number = int(self.value['id'])
        if not int(self.value['graph']):
            return 'no tensor' if number == 0 else 'invalid tensor without a graph'
        if number == 0:
            return 'invalid tensor: ' + self.value['graph']['error']['text'].string()
        return '%%%d %s' % (number, node_text(self.value['graph']['nodes'][number]))


class PrintGraph(gdb.Command):
    """zf-graph GRAPH: prints a zf_graph * as text, one node per line."""

    def __init__(self):
        super().__init__('zf-graph', gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        graph = int(gdb.parse_and_eval(argument or 'g'))
        call = '((unsigned long (*)(const void *, char *, unsigned long))zf_graph_text)(%s)'
        length = int(gdb.parse_and_eval(call % ('(void *)%d, (char *)0, 0' % graph)))
        buffer = int(gdb.parse_and_eval('((void *(*)(unsigned long))malloc)(%d)' % (length + 1)))
        gdb.parse_and_eval(call % ('(void *)%d, (char *)%d, %d' % (graph, buffer, length + 1)))
        text = gdb.selected_inferior().read_memory(buffer, length).tobytes().decode()
        gdb.parse_and_eval('((void (*)(void *))free)((void *)%d)' % buffer)
        gdb.write(text)


printers = gdb.printing.RegexpCollectionPrettyPrinter('zeroflow')
printers.add_printer('zf_shape', '^zf_shape$', Shape)
printers.add_printer('zf_tensor', '^zf_tensor$', Tensor)
printers.add_printer('zfi_node', '^zfi_node$', Node)
gdb.printing.register_pretty_printer(gdb.current_objfile(), printers, replace=True)
PrintGraph()
