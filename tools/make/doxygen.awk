# Prepares files for doxygen (docs/Doxyfile): awk -f tools/make/doxygen.awk FILE
#
# Of a header the plain comments are marked. Those that head a section ("/* ----") stay plain:
#
#     /* before a declaration */              /** before a declaration */
#     int64_t heads; /* after a member */    int64_t heads; /**< after a member */
#
# In a page a fence names its language alone, headings get the anchors that they have on the web,
# and links to files that are no pages become their text.
FNR == 1 {
    page = FILENAME
    gsub(/.*\/|\.md$/, "", page)
}
FILENAME !~ /\.md$/ {
    if (/^ *\/\* [-=]/) section = 1
    if (section) { print; if (/\*\//) section = 0; next }
    if (/^ *\/\*[^*]/) sub(/\/\*/, "/**")
    else if (/[;,{)}A-Z0-9] +\/\*[^*]/ && !/^ *(#|\*)/) sub(/\/\*/, "/**<")
    if (/^ *\*/ || (/\/\*\*/ && !/^ *#/)) gsub(/#/, "\\#")
    print
    next
}
/^```/ { fence = !fence; print /^```c / ? "```c" : "```"; next }
fence { print; next }
/^##+ / {
    slug = tolower($0)
    sub(/^#+ /, "", slug)
    gsub(/[^-a-z0-9_ ]/, "", slug)
    gsub(/ /, "-", slug)
    $0 = $0 " {#" page "-" slug "}"
}
{
    while (match($0, /\[[^]]*\]\([^)]*\)/)) {
        link = substr($0, RSTART, RLENGTH)
        text = target = link
        sub(/\]\(.*/, "", text)
        sub(/.*\]\(/, "", target)
        sub(/\)$/, "", target)
        sub(/^(\.\.\/|docs\/)/, "", target)
        sub(/^#/, page "#", target)
        if (target ~ /#/) { sub(/(\.md)?#/, "-", target); target = "#" target }
        known = sub(/^pictures\//, "", target) ||
                target ~ /^(#|http|CONTRIBUTING|CHANGELOG|[a-z-]+\.md$)/
        printf "%s%s", substr($0, 1, RSTART - 1), known ? text "](" target ")" : substr(text, 2)
        $0 = substr($0, RSTART + RLENGTH)
    }
    print
}
