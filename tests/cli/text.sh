# Included by tests that train on a text and compare bits: the text is the same on every machine.

# small_text DOCUMENTS LINES: so many documents, of so many lines of nine words; 300 words in all.
small_text() {
    awk -v documents="$1" -v lines="$2" 'BEGIN {
        s = 1
        for (d = 0; d < documents; d++) {
            for (l = 0; l < lines; l++) {
                line = ""
                for (w = 0; w < 9; w++) {
                    s = (s * 1103515245 + 12345) % 2147483648
                    line = line "w" int(s / 65536) % 300 " "
                }
                print line "."
            }
            print ""
        }
    }'
}
