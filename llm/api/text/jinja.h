/* Templates of chats: Jinja, as transformers runs it.
 *
 *     zf_jinja *t = zf_jinja_parse(text, bytes, "chat_template.jinja", &error);
 *     zf_jinja_run(t, &(zf_jinja_desc){.variables = json}, &out, NULL, &error);
 *
 * The judge is jinja2 in a sandbox with trim_blocks, lstrip_blocks, break and continue, and what
 * transformers adds: tojson without HTML, strftime_now, raise_exception and
 * {% generation %} ... {% endgeneration %} around what the assistant has written. Texts are equal
 * byte for byte. What is not supported is an error that names it and its line; some of it is an
 * error only when it is run: recursive loops, include, import, extends and block, the filters
 * center, filesizeformat, forceescape, groupby, pprint, random, slice, striptags, truncate,
 * urlencode, urlize, wordwrap and xmlattr, integers of more than 64 bits, and upper case of
 * characters that are not ASCII. */

typedef struct zf_jinja zf_jinja;

/* A template of at most 1 MiB, which is copied; `name` stands for its file in messages. NULL with
 * *error: "NAME: line N: ...". */
ZF_API zf_jinja *zf_jinja_parse(const char *text, size_t bytes, const char *name, zf_error *error);
ZF_API void zf_jinja_free(zf_jinja *); /* NULL: nothing */

/* The word is a name, a member or a whole string in the template. */
ZF_API bool zf_jinja_mentions(const zf_jinja *, const char *word);

/* A run. It ends with an error where it takes more steps or memory than it may. */
typedef struct zf_jinja_desc {
    const zf_json *variables; /* an object; NULL: there are none */
    int64_t now;   /* what strftime_now shows, in seconds since 1970, in the local time zone; 0: the
                    * time of the call */
    int64_t steps; /* at most; 0: 20 million, about a second */
    size_t memory; /* bytes, at most; 0: 256 MiB */
} zf_jinja_desc;

/* A part of a text, in bytes. */
typedef struct zf_jinja_span {
    size_t begin, end;
} zf_jinja_span;

/* {0} is an empty list. */
typedef struct zf_jinja_spans {
    zf_jinja_span *at;
    size_t count, room;
} zf_jinja_spans;
ZF_API void zf_jinja_spans_free(zf_jinja_spans *);

/* Appends the text to *out. marks: also the text of each generation block; may be NULL. False with
 * *error; *out is then as before. */
ZF_API bool zf_jinja_run(const zf_jinja *, const zf_jinja_desc *, zf_text *out,
                         zf_jinja_spans *marks, zf_error *error);
