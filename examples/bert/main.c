/* bert: pretrains BERT on a text, evaluates it, fills in masked words, exports its weights. */
#include "commands.h"

static const command commands[] = {
    {"pretrain", "train on masked words and next sentences", bert_command_pretrain},
    {"finetune", "train a model of a folder to give texts labels, or numbers", bert_command_finetune},
    {"classify", "the labels, or numbers, of texts", bert_command_classify},
    {"vocab", "make a WordPiece vocabulary from a text", bert_command_vocab},
    {"eval", "loss and accuracy of a checkpoint on the held-out part of a text", bert_command_eval},
    {"tokenize", "print the ids or tokens of texts", bert_command_tokenize},
    {"fill", "guess the [MASK] words of a sentence", bert_command_fill},
    {"merge", "export the weights with an adapter added to them", bert_command_merge},
    {"export", "write a checkpoint's weights under Hugging Face names", bert_command_export},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return command_main(&(command_program){"bert", commands}, argc, argv);
}
