/* Splits text from standard input into English sentences: one per line, with a blank line after
 * each document of about twenty. This is the input format of the corpus reader.
 *
 *     sentences dictionary < gcide.dict     the dictionary GCIDE of Debian's dict-gcide
 *     sentences text < licences             prose, with blank lines between paragraphs
 *     sentences manual < pages              manual pages in the man(7) macros
 *
 *     Lark \Lark\ (l[aum]rk), n. [OE. larke.] (Zool.)       header: dropped
 *        1. Any one numerous species of singing birds
 *           (family {Alaudid[ae]}). See {Pipit}. [Obs.]      a sense: cleaned, split into sentences
 *           [1913 Webster]                                   source: dropped
 *
 *                 The lark left his ground nest.  --Milton.  quotation: joined, author dropped
 *
 * Of a dictionary it keeps definitions, usage notes and quotations, and drops headwords,
 * pronunciations, etymologies, labels, authors, lists of synonyms and bare references. It drops
 * sentences that still contain markup or lost characters, or are mostly digits, and repeated ones.
 * The output is ASCII and depends on the input alone. Exit status: 0, or 1 with a message. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    fill_width = 64,         /* width to which the dictionary's lines were filled */
    document_sentences = 20, /* a document ends at the end of a paragraph after so many */
    poison = 1,              /* replaces an unknown character: its sentence is dropped */
    boundary = '\n',         /* a sentence ends here, with any punctuation */
};

typedef struct cutter {
    FILE *out;
    char *joined, *clean, *kept; /* a paragraph as read, cleaned, and one sentence of it */
    size_t joined_size;
    int in_document; /* sentences since the last blank line */
    bool strict;     /* keep only sentences with an initial capital and final punctuation */
    uint64_t *seen;  /* hashes of the sentences written; open addressing, 0 is free */
    size_t seen_count, seen_room;
} cutter;

static void die(const char *what)
{
    fprintf(stderr, "sentences: %s\n", what);
    exit(1);
}

/* Only ASCII: the locale must not change the corpus. */
static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_letter(char c) { return is_upper(c) || is_lower(c); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
static bool is_closing(char c) { return c == '"' || c == ')' || c == '\''; }
static bool has(const char *set, char c) { return c && strchr(set, c); }

static bool starts(const char *s, size_t n, const char *with)
{
    size_t size = strlen(with);
    return n >= size && !memcmp(s, with, size);
}

static bool contains(const char *s, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (starts(s + i, n - i, word)) return true;
    return false;
}

/* The index of the bracket that closes s[0]; n if there is none. */
static size_t matching(const char *s, size_t n)
{
    char open = s[0], close = open == '(' ? ')' : (char)(open + 2);
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        depth += (s[i] == open) - (s[i] == close);
        if (!depth) return i;
    }
    return n;
}

/* ---------- sentences ---------- */

/* True the first time that a sentence occurs. */
static bool is_new(cutter *c, const char *s, size_t n)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)s[i]) * 1099511628211u;
    hash += !hash;
    if (2 * c->seen_count >= c->seen_room) {
        size_t room = c->seen_room ? 2 * c->seen_room : 1 << 16;
        uint64_t *seen = calloc(room, sizeof *seen);
        if (!seen) die("out of memory");
        for (size_t i = 0; i < c->seen_room; i++) {
            size_t at = c->seen[i] & (room - 1);
            if (!c->seen[i]) continue;
            while (seen[at]) at = (at + 1) & (room - 1);
            seen[at] = c->seen[i];
        }
        free(c->seen);
        c->seen = seen;
        c->seen_room = room;
    }
    for (size_t at = hash & (c->seen_room - 1);; at = (at + 1) & (c->seen_room - 1)) {
        if (c->seen[at] == hash) return false;
        if (!c->seen[at]) {
            c->seen[at] = hash;
            c->seen_count++;
            return true;
        }
    }
}

/* Looks like a sentence: four words, one of them common, mostly letters, no markup. */
static bool is_sentence(const cutter *c, const char *s, size_t n)
{
    static const char *const references[] = {"See ",    "Cf. ",  "Same as ",  "Called ",
                                             "Compare", "Also ", "So called", "Specif"};
    size_t words = 0, lower = 0, letters = 0;
    for (size_t i = 0; i < n; i++) {
        bool first = !i || s[i - 1] == ' ';
        if (s[i] == poison || (unsigned char)s[i] >= 128 || has("{}[]\\|~^_<>*=@#`", s[i]))
            return false;
        /* The dictionary has ? for a character that it could not represent. */
        if (s[i] == '?' && (first || (i + 1 < n && s[i + 1] != ' ' && !is_closing(s[i + 1]))))
            return false;
        letters += is_letter(s[i]) || s[i] == ' ';
        if (!first) continue;
        while (i + 1 < n && has("\"'(", s[i])) i++;
        words += is_letter(s[i]);
        lower += is_lower(s[i]);
        letters += i && is_letter(s[i]) && s[i - 1] != ' ';
    }
    if (words < 4 || !lower || 10 * letters < 8 * n) return false;
    if (words < 8)
        for (size_t k = 0; k < sizeof references / sizeof *references; k++)
            if (starts(s, n, references[k])) return false;
    if (c->strict) {
        size_t end = n;
        while (end && is_closing(s[end - 1])) end--;
        return words >= 5 && 2 * lower > words && has(".?!", s[end - 1]) &&
               (is_upper(s[0]) || (has("\"(", s[0]) && is_upper(s[1])));
    }
    return true;
}

/* Writes one sentence, and repairs what dropping parts has broken. */
static void sentence(cutter *c, const char *s, size_t n)
{
    char *kept = c->kept;
    size_t size = 0, quotes = 0, opened = 0, closed = 0;
    for (size_t i = 0; i < n; i++) {
        quotes += s[i] == '"';
        opened += s[i] == '(';
        closed += s[i] == ')';
    }
    for (size_t i = 0; i < n; i++) {
        if ((s[i] == '"' && quotes % 2) || (has("()", s[i]) && opened != closed)) continue;
        if (s[i] == ' ' && (!size || has(" (", kept[size - 1]))) continue;
        if (size && kept[size - 1] == ' ' && has(".,;:!?)", s[i]) && !starts(s + i, n - i, "..."))
            size--;
        if (has(",;:.", s[i]) && size && has(",;:", kept[size - 1])) size--;
        if (!size && has(".,;:!?-+/)' ", s[i])) continue;
        if (s[i] == ')') { /* empty parentheses */
            size_t empty = size;
            while (empty && !is_letter(kept[empty - 1]) && !is_digit(kept[empty - 1]) &&
                   kept[empty - 1] != '(')
                empty--;
            if (empty && kept[empty - 1] == '(') {
                size = empty - 1;
                continue;
            }
        }
        kept[size++] = s[i];
    }
    while (size && has(" ,;:-(", kept[size - 1])) size--;
    if (!size) return;
    if (!c->strict) {
        size_t end = size;
        while (end && is_closing(kept[end - 1])) end--;
        if (!end || !has(".?!", kept[end - 1])) kept[size++] = '.';
        if (is_lower(kept[0])) kept[0] = (char)(kept[0] - 'a' + 'A');
    }
    if (!is_sentence(c, kept, size) || !is_new(c, kept, size)) return;
    kept[size++] = '\n';
    fwrite(kept, 1, size, c->out);
    c->in_document++;
}

/* True when the full stop at s[dot] belongs to an abbreviation or an initial. */
static bool is_abbreviation(const char *s, size_t dot)
{
    static const char *const known =
        " Mr Mrs Ms Dr St Sts Jr Sr Prof Rev Hon Gen Col Capt Lieut Lt Maj Gov Pres Esq Messrs "
        "Bp Abp Card Ld Lat Gr Fr Ger Eng Amer Am Scot Cf cf vs viz i.e e.g ie eg esp Esp spec "
        "Spec orig usu No Nos Fig Figs fig Illust Vol vol p pp Sec sec Ch ch Eccl Bot Zool Anat "
        "Chem Min Med Mus Naut Mil Jan Feb Mar Apr Aug Sept Oct Nov Dec Jer Matt Ps Prov Isa "
        "Ezek Dan Rom Cor Gal Eph Phil Thess Tim Heb Pet Shak ff a.k.a approx abbr resp incl Inc "
        "Ltd Co Corp ";
    size_t start = dot;
    char word[16];
    while (start && !is_blank(s[start - 1]) && s[start - 1] != '(' && s[start - 1] != '"') start--;
    if (dot == start || dot - start > sizeof word - 3) return false;
    if (dot - start == 1 && is_upper(s[start]) && s[start] != 'I') return true;
    if (dot - start >= 3 && s[dot - 2] == '.') return true;
    snprintf(word, sizeof word, " %.*s ", (int)(dot - start), s + start);
    return strstr(known, word);
}

/* Splits cleaned text where a full stop, question or exclamation mark is followed by a capital. */
static void sentences(cutter *c, const char *s, size_t n)
{
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        size_t end = i + 1, next = i + 1, digits = 0;
        if (s[i] != boundary) {
            if (!has(".?!", s[i])) continue;
            while (end < n && is_closing(s[end])) end++;
            if (end < n && s[end] != ' ') continue;
            next = end;
            while (next < n && s[next] == ' ') next++;
            while (next + digits < n && is_digit(s[next + digits])) digits++;
            if (digits && starts(s + next + digits, n - next - digits, ". ")) {
                next += digits + 1; /* the number of a list item */
            } else if (next < n && s[next] != boundary) {
                size_t word = next;
                while (word < n && has("\"'(", s[word])) word++;
                if (word < n && !is_upper(s[word])) continue;
                if (s[i] == '.' && ((i && s[i - 1] == '.') || is_abbreviation(s, i))) continue;
            }
        } else {
            end = i;
        }
        sentence(c, s + start, end - start);
        start = next;
    }
    if (start < n) sentence(c, s + start, n - start);
}

static void paragraph_ends(cutter *c)
{
    if (c->in_document < document_sentences) return;
    fputc('\n', c->out);
    c->in_document = 0;
}

/* ---------- the dictionary ---------- */

/* Writes the replacement of a bracketed code for a character that ASCII lacks: the letter without
 * its mark, a name, or poison. Returns the size; -1 if the bracket is a remark and no code. */
static int put_code(const char *s, size_t n, char *out)
{
    static const struct {
        const char *code, *text;
    } named[] = {
        {"ae", "ae"},          {"AE", "AE"},        {"oe", "oe"},        {"OE", "OE"},
        {"aum", "a"},          {"imac", "i"},       {"deg", " degrees"}, {"eth", "th"},
        {"th", "th"},          {"thorn", "th"},     {"ng", "ng"},        {"asl", "a"},
        {"add", "a"},          {"udd", "u"},        {"yogh", "gh"},      {"dsdot", "s"},
        {"pounds", "pounds "}, {"alpha", "alpha"},  {"beta", "beta"},    {"gamma", "gamma"},
        {"delta", "delta"},    {"min", " minutes"}, {"sec", " seconds"}, {"sharp", " sharp"},
        {"flat", " flat"},     {"frac12", "1/2"},   {"frac14", "1/4"},   {"frac34", "3/4"},
        {"root", "\1"},        {"sect", "\1"},      {"bar", "\1"},       {"cuberoot", "\1"},
        {"times", "\1"},       {"div", "\1"},       {"divby", "\1"},     {"hand", "\1"},
        {"phi", "\1"},         {"theta", "\1"},     {"pi", "\1"},
    };
    size_t from = 0, to = n;
    for (size_t k = 0; k < sizeof named / sizeof *named; k++)
        if (strlen(named[k].code) == n && !memcmp(named[k].code, s, n)) {
            size_t size = strlen(named[k].text);
            memcpy(out, named[k].text, size);
            return (int)size;
        }
    if (n && is_digit(s[0]) && n < 3) return 0; /* the number of a sense, after a reference */
    while (from < to && has("'`^~\",.-=*:", s[from])) from++;
    while (to > from && has("^,", s[to - 1])) to--;
    if (to - from == n || to == from || to - from > 2) return -1;
    for (size_t i = from; i < to; i++)
        if (!is_letter(s[i])) return -1;
    memcpy(out, s + from, to - from);
    return (int)(to - from);
}

/* The end of the author with which s begins ("--Jer. Taylor.", "--Gen. vi. 1."). A name runs to the
 * end of the paragraph unless a quotation, a remark or a plain sentence follows. */
static size_t author(const char *s, size_t n)
{
    size_t words = 0;
    for (size_t i = 2; i < n; i++) {
        if (s[i] == ' ' && i + 1 < n && has("\"[{", s[i + 1])) return i;
        if (has(";)", s[i]) || (s[i] == ' ' && starts(s + i + 1, n - i - 1, "--"))) return i;
        words += s[i] == ' ';
        if (s[i] == '.' && i + 2 < n && s[i + 1] == ' ' && is_upper(s[i + 2]) && i > 5 &&
            (words > 3 || (is_lower(s[i - 1]) && is_lower(s[i - 2]) && is_lower(s[i - 3]) &&
                           is_lower(s[i - 4]))))
            return i + 1;
    }
    return n;
}

/* The end of a part of speech, such as ", prop. n.", with which s begins; 0 where there is none. */
static size_t part_of_speech(const char *s, size_t n)
{
    static const char *const parts[] = {"n.",   "a.",    "v.",    "adv.",    "adj.",  "t.",
                                        "i.",   "prop.", "pl.",   "p.",      "pr.",   "vb.",
                                        "imp.", "prep.", "conj.", "interj.", "pron.", "&"};
    size_t end = 0, at = 0, k;
    do {
        while (at < n && has(" ,", s[at])) at++;
        for (k = 0; k < sizeof parts / sizeof *parts; k++)
            if (starts(s + at, n - at, parts[k])) {
                at += strlen(parts[k]);
                end = at;
                break;
            }
    } while (k < sizeof parts / sizeof *parts);
    return end;
}

/* True for a parenthesis that only labels: a subject "(Zool.)", a Latin name "({Alauda})" or an
 * author "(--Matt. v. 3)". */
static bool is_label(const char *s, size_t n, bool leading)
{
    if (!n || starts(s, n, "--") || s[n - 1] == ':') return true;
    if (s[0] == '{' && matching(s, n) == n - 1) return true;
    if (!is_upper(s[0]) || n > 40) return false;
    return leading || s[n - 1] == '.';
}

/* Removes the markup from one paragraph of the dictionary; a quotation keeps what its editor has
 * put into brackets. Writes at most 2 n + 64 characters; returns their number. */
static size_t clean(const char *s, size_t n, bool quotation, char *out)
{
    size_t size = 0, i = 0;
    bool leading = true; /* only labels and a bold phrase so far */
    if (!quotation && n > 3) {
        size_t digits = 0;
        while (digits < n && is_digit(s[digits])) digits++;
        if (digits && starts(s + digits, n - digits, ". ")) i = digits + 2;
        if (starts(s + i, n - i, "(") && i + 2 < n && is_lower(s[i + 1]) && s[i + 2] == ')') i += 3;
    }
    while (i < n) {
        size_t left = n - i, end;
        if (s[i] == '[') {
            int length;
            end = matching(s + i, left);
            if (end == left) {
                out[size++] = poison;
                i++;
                continue;
            }
            length = put_code(s + i + 1, end - 1, out + size);
            if (length >= 0) {
                size += (size_t)length;
            } else if (quotation && end < 24 && s[i + end - 1] != '.') {
                memcpy(out + size, s + i + 1, end - 1);
                size += end - 1;
            } else if (size && is_letter(out[size - 1])) {
                out[size++] = poison;
            }
            i += end + 1;
        } else if (s[i] == '{') {
            end = matching(s + i, left);
            for (size_t k = 1; k < end; k++) {
                size_t close = s[i + k] == '[' ? matching(s + i + k, end - k) : end - k;
                int length = -1;
                if (close < end - k) length = put_code(s + i + k + 1, close - 1, out + size);
                if (length >= 0) { /* a code inside, as in {Larid[ae]} */
                    size += (size_t)length;
                    k += close;
                } else {
                    out[size++] = has("*`\"{[", s[i + k]) ? poison : s[i + k];
                }
            }
            i += end < left ? end + 1 : left;
            /* "{Port bar} (Naut.), a bar": the label is dropped, the comma joins. */
            if (i < n && s[i] == ' ' && i + 1 < n && s[i + 1] == '(') {
                end = matching(s + i + 1, n - i - 1);
                if (end < n - i - 1 && is_label(s + i + 2, end - 1, true)) i += end + 2;
            }
            leading = false;
        } else if (s[i] == '(') {
            end = matching(s + i, left);
            if (end < left && is_label(s + i + 1, end - 1, leading)) {
                i += end + 1;
            } else {
                out[size++] = s[i++];
                leading = false;
            }
        } else if (starts(s + i, left, "--") && (!i || s[i - 1] == ' ')) {
            size_t after = i + 2, part;
            if (after < n && s[after] != ' ' && s[after] != '{') {
                i = quotation ? n : i + author(s + i, left);
                continue;
            }
            while (after < n && s[after] == ' ') after++;
            if (after < n && s[after] == '{' &&
                (end = matching(s + after, n - after)) < n - after &&
                (part = part_of_speech(s + after + end + 1, n - after - end - 1))) {
                out[size++] = boundary; /* "-- {Right"ly}, adv.": a derived word */
                i = after + end + 1 + part;
                continue;
            }
            part = part_of_speech(s + after, n - after);
            while (size && out[size - 1] == ' ') size--;
            if (part) out[size++] = boundary; /* "-- n. A movement": another sense */
            else if (size && has(".?!", out[size - 1])) out[size++] = boundary;
            else if (size && !has(",;:", out[size - 1])) memcpy(out + size, " -", 2), size += 2;
            if (size && out[size - 1] != boundary) out[size++] = ' ';
            i = after + part;
        } else if (starts(s + i, left, ". . .")) {
            while (size && out[size - 1] == ' ') size--;
            memcpy(out + size, " ... ", 5);
            size += 5;
            while (i < n && has(". ", s[i])) i++;
        } else {
            leading &= s[i] == ' ';
            out[size++] = s[i++];
        }
    }
    return size;
}

/* Cleans the current paragraph and splits it into sentences. */
static void flush_entry(cutter *c, bool quotation)
{
    const char *s = c->joined;
    size_t n = c->joined_size, skip = 0;
    c->joined_size = 0;
    if (!n) return;
    if (starts(s, n, "Note:") || starts(s, n, "Usage:")) skip = s[0] == 'N' ? 5 : 6;
    if (starts(s, n, "Syn:")) /* an essay on the synonyms may follow the list */
        while (skip < n && !starts(s + skip, n - skip, " -- {")) skip++;
    s += skip;
    n -= skip;
    if (n && s[0] == '{') { /* derived words on lines of their own */
        size_t end = matching(s, n);
        if (end < n && (memchr(s, '"', end) || part_of_speech(s + end + 1, n - end - 1))) return;
    }
    sentences(c, c->clean, clean(s, n, quotation, c->clean));
}

static void join(cutter *c, const char *s, size_t n)
{
    while (n && s[n - 1] == ' ') n--;
    if (!n) return;
    if (c->joined_size) c->joined[c->joined_size++] = ' ';
    memcpy(c->joined + c->joined_size, s, n);
    c->joined_size += n;
}

static bool is_source(const char *s, size_t n)
{
    size_t end = s[0] == '[' ? matching(s, n) : n;
    return end < n && (contains(s, end, "Webster") || contains(s, end, "WordNet") ||
                       contains(s, end, "PJC") || contains(s, end, "Century Dict"));
}

/* Lines were broken by filling or by the editor. If the next word would have fitted into a line,
 * the editor ended it. */
static void dictionary(cutter *c, const char *text, size_t size)
{
    bool started = false, header = false, quotation = false, ended = true, block = true;
    int depth = 0; /* number of open brackets in a header */
    size_t before = 0;
    for (size_t at = 0, next; at < size; at = next) {
        const char *s = text + at, *newline = memchr(s, '\n', size - at);
        size_t n = newline ? (size_t)(newline - s) : size - at, indent = 0, word = 0, length;
        bool full, sense;
        next = at + n + 1;
        while (indent < n && is_blank(s[indent])) indent++;
        length = n;
        s += indent;
        n -= indent;
        if (!n) {
            flush_entry(c, quotation);
            block = ended = true;
            header = quotation = false;
            continue;
        }
        while (word < n && s[word] != ' ') word++;
        full = before + 1 + word > fill_width;
        sense = n > 3 && s[0] == '(' && is_lower(s[1]) && s[2] == ')';
        before = length;
        if (!indent) {
            flush_entry(c, quotation);
            paragraph_ends(c);
            header = true;
            depth = 0;
            started |= memchr(s, '\\', n) != NULL;
        } else if (header) {
            header = depth > 0 || memchr(s, '\\', n) ||
                     (full && !sense && !is_upper(s[0]) && !is_digit(s[0]));
        }
        if (header || !started) {
            for (size_t i = 0; i < n; i++) depth += (s[i] == '[') - (s[i] == ']');
            block = false;
            ended = true;
            continue;
        }
        if (is_source(s, n)) {
            flush_entry(c, quotation);
            quotation = false;
            ended = true;
            continue;
        }
        if (quotation && indent >= 40) continue; /* the rest of an author's name */
        if (ended || sense || (!quotation && !full)) {
            flush_entry(c, quotation);
            quotation = block && indent >= 9 && !sense;
            ended = false;
        }
        block = false;
        if (quotation)
            for (size_t i = 0; i + 2 < n; i++)
                if (starts(s + i, n - i, "--") && s[i + 2] != ' ' && (!i || s[i - 1] == ' ')) {
                    n = i;
                    ended = true;
                }
        join(c, s, n);
    }
    flush_entry(c, quotation);
}

/* ---------- other prose ---------- */

static void flush_prose(cutter *c)
{
    sentences(c, c->joined, c->joined_size);
    c->joined_size = 0;
    paragraph_ends(c);
}

/* Paragraphs end at blank lines (a lone dot or comment sign counts as one), at list items and where
 * the indentation grows. Leading comment signs and bullets are dropped. */
static void prose(cutter *c, const char *text, size_t size)
{
    size_t before = 0;
    for (size_t at = 0, next; at < size; at = next) {
        const char *s = text + at, *newline = memchr(s, '\n', size - at);
        size_t n = newline ? (size_t)(newline - s) : size - at, mark = 0, indent, digits;
        next = at + n + 1;
        while (n && (is_blank(s[n - 1]) || s[n - 1] == '\f')) n--;
        while (mark < n && (is_blank(s[mark]) || has("#/*;%", s[mark]))) mark++;
        indent = mark;
        if (mark + 1 < n && has("-+o", s[mark]) && s[mark + 1] == ' ') mark += 2;
        for (digits = mark; digits < n && is_digit(s[digits]);) digits++;
        if (digits > mark && digits < n && has(".)", s[digits])) mark = digits + 1;
        if (mark == indent && mark + 2 < n && s[mark] == '(' && s[mark + 2] == ')') mark += 3;
        if (mark == n || (n - mark == 1 && s[mark] == '.')) {
            flush_prose(c);
            before = 0;
            continue;
        }
        if (mark > indent || (before && indent > before)) flush_prose(c);
        while (is_blank(s[mark])) mark++;
        before = mark;
        join(c, s + mark, n - mark);
    }
    flush_prose(c);
}

/* Appends the plain text of one escaped roff line to out; returns its size. */
static size_t roff_text(const char *s, size_t n, char *out)
{
    static const char *const named[][2] = {{"aq", "'"},  {"cq", "'"},   {"oq", "'"},   {"lq", "\""},
                                           {"rq", "\""}, {"dq", "\""},  {"em", " - "}, {"en", "-"},
                                           {"hy", "-"},  {"co", "(C)"}, {"mi", "-"}};
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\\') {
            out[size++] = s[i];
            continue;
        }
        if (++i == n) break;
        if (s[i] == '"' || s[i] == '#') break;
        if (s[i] == '-') out[size++] = '-';
        else if (s[i] == ' ' || s[i] == '~' || s[i] == '0') out[size++] = ' ';
        else if (s[i] == 'e' || s[i] == '\\') out[size++] = '\\';
        else if (s[i] == 'f' || s[i] == '*' || s[i] == 'n') { /* fonts, strings, registers */
            if (i + 1 < n && s[i + 1] == '(') i += 3;
            else if (i + 1 < n && s[i + 1] == '[') {
                while (i < n && s[i] != ']') i++;
            } else i++;
        } else if (s[i] == 's') {
            while (i + 1 < n && has("+-0123456789", s[i + 1])) i++;
        } else if (s[i] == '(' && i + 2 < n) {
            size_t k = 0, count = sizeof named / sizeof *named;
            while (k < count && memcmp(named[k][0], s + i + 1, 2)) k++;
            if (k < count) {
                memcpy(out + size, named[k][1], strlen(named[k][1]));
                size += strlen(named[k][1]);
            } else {
                out[size++] = poison;
            }
            i += 2;
        } else if (!has("&|^/,:c", s[i])) {
            out[size++] = poison;
        }
    }
    return size;
}

/* Pages in the man(7) macros: font macros give their words, other macros separate paragraphs;
 * headings and displays are dropped. Pages in mdoc(7), whose text is mostly in macros, are
 * skipped. */
static void manual(cutter *c, const char *text, size_t size)
{
    bool display = false, mdoc = false, heading = false;
    for (size_t at = 0, next; at < size; at = next) {
        const char *s = text + at, *newline = memchr(s, '\n', size - at);
        size_t n = newline ? (size_t)(newline - s) : size - at, length;
        next = at + n + 1;
        if (n && s[n - 1] == '\r') n--;
        if (n && has(".'", s[0])) {
            bool font =
                n > 3 && has("BIR", s[1]) && (s[2] == ' ' || (has("BIR", s[2]) && s[3] == ' '));
            if (starts(s, n, ".Dd") || starts(s, n, ".TH")) mdoc = s[1] == 'D', display = false;
            if (starts(s, n, ".nf") || starts(s, n, ".EX") || starts(s, n, ".TS")) display = true;
            if (starts(s, n, ".fi") || starts(s, n, ".EE") || starts(s, n, ".TE")) display = false;
            if (starts(s, n, ".\\\"") || starts(s, n, "'\\\"")) continue;
            if (!font) {
                flush_prose(c);
                heading = starts(s, n, ".TP") || (n == 3 && starts(s, n, ".SH"));
                continue;
            }
            if (!display && !mdoc && !heading) {
                bool spaced = s[2] == ' ', quoted = false;
                length = roff_text(s + 3, n - 3, c->clean);
                if (c->joined_size) c->joined[c->joined_size++] = ' ';
                for (size_t i = spaced ? 0 : 1; i < length; i++) {
                    if (c->clean[i] == '"') quoted = !quoted;
                    else if (c->clean[i] != ' ' || quoted || spaced)
                        c->joined[c->joined_size++] = c->clean[i];
                }
            }
            heading = false;
            continue;
        }
        if (display || mdoc || heading || !n) {
            if (!n) flush_prose(c);
            heading = false;
            continue;
        }
        length = roff_text(s, n, c->clean);
        join(c, c->clean, length);
    }
    flush_prose(c);
}

/* ---------- the program ---------- */

/* Splits `text` in the given mode ("dictionary", "text", "manual"); false for an unknown mode. */
static bool cut(const char *mode, const char *text, size_t size, FILE *out)
{
    static const struct {
        const char *name;
        void (*run)(cutter *, const char *, size_t);
    } modes[] = {{"dictionary", dictionary}, {"text", prose}, {"manual", manual}};
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        cutter c = {.out = out, .strict = modes[k].run != dictionary};
        if (strcmp(mode, modes[k].name)) continue;
        if (size > SIZE_MAX / 4 - 64) die("the text is too large");
        c.joined = malloc(2 * size + 64);
        c.clean = malloc(4 * size + 64);
        c.kept = malloc(4 * size + 64);
        if (!c.joined || !c.clean || !c.kept) die("out of memory");
        modes[k].run(&c, text, size);
        free(c.joined);
        free(c.clean);
        free(c.kept);
        free(c.seen);
        return true;
    }
    return false;
}

#ifndef SENTENCES_NO_MAIN
int main(int argc, char **argv)
{
    char *text = NULL;
    size_t size = 0, room = 0, got;
    do {
        if (size == room) {
            char *grown =
                room > SIZE_MAX / 2 ? NULL : realloc(text, room = room ? 2 * room : 1 << 20);
            if (!grown) die("out of memory");
            text = grown;
        }
        got = fread(text + size, 1, room - size, stdin);
        size += got;
    } while (got);
    if (ferror(stdin)) die("cannot read standard input");
    if (argc != 2 || !cut(argv[1], text, size, stdout))
        die("usage: sentences dictionary|text|manual < INPUT > OUTPUT");
    if (fflush(stdout) || ferror(stdout)) die("cannot write standard output");
    free(text);
    return 0;
}
#endif
