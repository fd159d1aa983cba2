/* The parts of a chat's style: chat_styles.c knows the styles, chat.c writes them. */
#ifndef CHAT_INSIDE_H
#define CHAT_INSIDE_H

#include "chat.h"

enum { CHAT_LITERALS = 10 };

/* In texts, \1 is the token that begins a text, \2 the one that ends it, and \3 a date. */
struct chat_style {
    const char *name;
    const char *first;              /* before the whole text */
    const char *before[CHAT_ROLES]; /* NULL: no message of this role */
    const char *behind[CHAT_ROLES];
    const char *answer;
    const char *end;   /* after the assistant's message: the beginning of `behind` */
    const char *close; /* behind the whole text if it does not end with `answer`; NULL: nothing */
    /* The system message of a chat that does not begin with one; NULL: there is none. */
    const char *system;
    /* Between `before` and the text of a system message that begins a chat; NULL: nothing. With \3,
     * the date is today's, or always 26 Jul 2024. */
    const char *head;
    bool today;
    bool trimmed[CHAT_ROLES]; /* white space around messages is removed */
    bool whole_trimmed;       /* and around a user's message together with the system's */
    /* Where the text of a system message that begins a chat goes: to the first message, or to the
     * last one if it is the user's. */
    enum { CHAT_APART, CHAT_TO_FIRST, CHAT_TO_LAST } joined;
    bool alternates;   /* users and assistants must alternate */
    bool thinks;       /* the assistant's thoughts are in <think> and </think> */
    bool skips_empty;  /* an empty system message is left out */
    /* How other templates are recognised than those with a known digest: they contain `part`,
     * without spaces, if that is not NULL; and all of their texts are among these, including the
     * first of them. */
    const char *part;
    const char *literals[CHAT_LITERALS];
};

#endif
