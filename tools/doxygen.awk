# Marks the plain comments of a header for doxygen (docs/Doxyfile): awk -f tools/doxygen.awk HEADER
#
#     /* before a declaration */              /** before a declaration */
#     int64_t heads; /* behind a member */    int64_t heads; /**< behind a member */
#
# Comments that head a section ("/* ----", "/* ====") and those of definitions stay plain.
/^ *\/\* [-=]/ { inside = 1 }
inside { print; if (/\*\//) inside = 0; next }
/^ *\/\*[^*]/ { sub(/\/\*/, "/**") }
/[;,{)}A-Z0-9] +\/\*[^*]/ && !/^ *#/ && !/^ *\/\*/ && !/^ \*/ { sub(/\/\*/, "/**<") }
/^ *\*/ || /\/\*\*/ { if (!/^ *#/) gsub(/#/, "\\#") }
{ print }
