#include "tokenizing.h"
#include "../options/fail.h"

#include <string.h>

const zf_option tokenizing_rows[] = {ZF_OPTION(tokenizing, FLAG, cased, 0, NULL, .topic = "data",
                                               .help = "distinguish capitals and accents"),
                                     ZF_OPTION(tokenizing, CHOICE, strip_accents, 0, "auto|no|yes",
                                               .help = "remove accents; auto: yes, unless --cased"),
                                     ZF_OPTION(tokenizing, CHOICE, chinese_chars, 0, "auto|no|yes",
                                               .help = "each ideograph is a word; auto: yes"),
                                     {.name = NULL}};

static const char *yes_or_no(zf_wordpiece_choice choice)
{
    return choice == ZF_WORDPIECE_YES ? "yes" : "no";
}

static const char *digest(char text[TOKENIZING_TEXT], bool there, uint64_t value)
{
    snprintf(text, TOKENIZING_TEXT, "none");
    if (there) snprintf(text, TOKENIZING_TEXT, "%016llx", (unsigned long long)value);
    return text;
}

void tokenizing_note(tokenizing_notes *n, const tokenizing *t, const zf_wordpiece *vocab,
                     uint64_t corpus, uint64_t begins)
{
    zf_wordpiece_options said = tokenizing_options(t),
                         o = vocab ? zf_wordpiece_options_of(vocab) : zf_wordpiece_resolve(&said);
    n->note[0] = (zf_note){"cased", o.lower_case == ZF_WORDPIECE_YES ? "no" : "yes"};
    n->note[1] = (zf_note){"strip-accents", yes_or_no(o.strip_accents)};
    n->note[2] = (zf_note){"chinese-chars", yes_or_no(o.chinese_chars)};
    n->note[3] = (zf_note){"vocabulary digest",
                           digest(n->vocab, vocab != NULL, vocab ? zf_wordpiece_digest(vocab) : 0)};
    n->note[4] = (zf_note){"corpus digest", digest(n->corpus, corpus != 0, corpus)};
    n->note[5] = (zf_note){"examples digest", digest(n->begins, begins != 0, begins)};
}

bool tokenizing_fits(const tokenizing_notes *n, const char *load, const char *vocab_path,
                     const char *corpus_path, const char *init, zf_error *error)
{
    for (int i = 0; i < TOKENIZING_NOTES; i++) {
        const char *key = n->note[i].key, *value = n->note[i].value;
        char saved[TOKENIZING_TEXT];
        zf_error none = {ZF_OK, ""};
        if (zf_checkpoint_note(load, key, saved, sizeof saved, &none)) {
            if (none.status == ZF_ERR_ARGUMENT && strcmp(key, "cased")) continue;
            *error = none;
            return false;
        }
        /* Older programs note no digest of --batch-file. */
        if (!strcmp(saved, value) || (i == 4 && !strcmp(saved, "none"))) continue;
        if (i == 3)
            return fail(error, ZF_ERR_MISMATCH,
                        "%s was trained with another vocabulary than %s: without --vocab the "
                        "checkpoint's is taken; or start anew from its weights with %s",
                        load, vocab_path ? vocab_path : "none", init);
        if (i > 3)
            return fail(error, ZF_ERR_MISMATCH,
                        "%s was trained on another text than %s, or with its sentences in another "
                        "order: give the same one, or start anew from its weights with %s",
                        load, corpus_path ? corpus_path : "none", init);
        if (i == 0)
            return fail(error, ZF_ERR_MISMATCH,
                        "%s was trained with%s --cased: %s, or start anew from its weights with %s",
                        load, strcmp(saved, "yes") ? "out" : "",
                        strcmp(saved, "yes") ? "leave it out" : "give it", init);
        return fail(error, ZF_ERR_MISMATCH,
                    "%s was trained with %s = %s, not %s: give the same --%s, or start anew from "
                    "its weights with %s",
                    load, key, saved, value, key, init);
    }
    return true;
}
