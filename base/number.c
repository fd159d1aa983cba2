/* Numbers of descs; numbers as text, which is the same in every locale. */
#include <locale.h>

enum { ZFI_NUMBER_TEXT = 32 };

/* The number in a field of a desc; `otherwise` where the field is 0, 0 where it is ZF_ZERO. */
static double zfi_or(double value, double otherwise)
{
    return value == ZF_ZERO ? 0 : value == 0 ? otherwise : value;
}

/* The shortest of %.15g, %.16g, %.17g that reads back as `value`, with a decimal point; or "inf",
 * "-inf", "nan". Returns text. */
static const char *zfi_double_text(char text[ZFI_NUMBER_TEXT], double value)
{
    const char *point = localeconv()->decimal_point;
    char *at;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, ZFI_NUMBER_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (isnan(value)) return strcpy(text, "nan");
    if (strcmp(point, ".") && (at = strstr(text, point))) {
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    return text;
}

/* Reads [+-]digits[.digits][e[+-]digits], inf or nan from `at` to at most `end`. Returns the end of
 * the number, or NULL where there is none. Rounds correctly; overflow gives infinity. */
static const char *zfi_double_read(const char *at, const char *end, double *value)
{
    const char *point = localeconv()->decimal_point, *start = at;
    char text[400];
    size_t length = 0;
    bool negative = at < end && *at == '-', digits = false;
    if (at < end && (*at == '-' || *at == '+')) at++;
    if (end - at >= 3 && (!memcmp(at, "inf", 3) || !memcmp(at, "nan", 3))) {
        *value = *at == 'n' ? NAN : negative ? -INFINITY : INFINITY;
        return at + 3;
    }
    for (at = start; at < end && length < sizeof text - 8; at++) {
        bool exponent = (*at == 'e' || *at == 'E') && digits;
        bool sign = (*at == '-' || *at == '+') && (at == start || at[-1] == 'e' || at[-1] == 'E');
        if (*at >= '0' && *at <= '9') digits = true, text[length++] = *at;
        else if (*at == '.') length += (size_t)snprintf(text + length, 8, "%.6s", point);
        else if (exponent || sign) text[length++] = *at;
        else break;
    }
    if (!digits) return NULL;
    text[length] = '\0';
    {
        char *stop;
        *value = strtod(text, &stop);
        return *stop ? NULL : at;
    }
}
