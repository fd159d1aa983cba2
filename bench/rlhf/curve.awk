# One curve of a page of zf-report as a picture: awk -f bench/rlhf/curve.awk -v name=reward PAGE > SVG
/^<style>/ { styles = 1 }
styles { style = style $0 "\n" }
/<\/style>/ { styles = 0 }
index($0, "<svg ") && index($0, "\"" name " over steps\"") {
    drawn = 1
    sub(/<svg /, "<svg xmlns=\"http://www.w3.org/2000/svg\" ")
    print
    sub(/<\/style>.*/, "</style>", style)
    $0 = style
}
drawn {
    last = index($0, "</svg>")
    print last ? substr($0, 1, last + 5) : $0
    if (last) exit
}
END { if (!last) exit 1 }
