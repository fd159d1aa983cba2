/* What all pictures have: text, the head, legends. */
#include "picture.h"

#include <string.h>

void picture_text(FILE *file, const char *text, size_t most)
{
    for (size_t k = 0; text[k] && k < most; k++) {
        switch (text[k]) {
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '&': fputs("&amp;", file); break;
        case '"': fputs("&quot;", file); break;
        default: fputc((unsigned char)text[k] < ' ' ? '?' : text[k], file);
        }
    }
    if (strlen(text) > most) fputs("\xE2\x80\xA6", file);
}

void picture_begin(FILE *file, double width, double height, const char *title)
{
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n<title>",
            width, height, width, height);
    picture_text(file, title, 200);
    fputs("</title>\n<style>\n"
          "text { font: 11px 'DejaVu Sans', Verdana, sans-serif; fill: #24292f; }\n"
          ".head { font-size: 14px; font-weight: bold; }\n"
          ".soft { fill: #6e7781; }\n"
          ".mid { text-anchor: middle; }\n"
          ".end { text-anchor: end; }\n"
          ".mono { font-family: 'DejaVu Sans Mono', Menlo, monospace; font-size: 10px; }\n"
          "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
          file);
}

double picture_legend(FILE *file, double x, double y, const picture_colour *colour)
{
    fprintf(file,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\" "
            "stroke=\"#8c959f\" stroke-width=\"0.5\"/><text x=\"%.1f\" y=\"%.1f\">",
            x, y - 10, colour->fill, x + 17, y);
    picture_text(file, colour->name, 40);
    fputs("</text>\n", file);
    return x + 35 + 7 * (double)strlen(colour->name);
}

zf_status picture_end(FILE *file)
{
    fputs("</svg>\n", file);
    return fflush(file) || ferror(file) ? ZF_ERR_IO : ZF_OK;
}
