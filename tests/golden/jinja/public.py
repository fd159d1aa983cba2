"""Compares the templates of public models, as zeroflow and as jinja2 run them; prints public.txt:

    pip install transformers jinja2
    cc -I. tests/golden/jinja/run.c ... -o run       (as its comment says)
    python3 tests/golden/jinja/public.py ./run FOLDER > tests/golden/jinja/public.txt

FOLDER has the templates, which are not part of this repository, in folders by their source:
llama.cpp (models/templates of github.com/ggml-org/llama.cpp), trl (trl/chat_templates of TRL).
Each is run with the conversations of make.py, without and with the beginning of an answer.
"""
import hashlib
import json
import pathlib
import subprocess
import sys

from make import CONVERSATIONS, NOW, render, variables_of


def main(program, folder):
    ours = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print("# same: texts that are equal byte for byte; refused: by both; other: anything else")
    print("# sha256 of the template  same refused other  template")
    for path in sorted(folder.glob("*/*.jinja")):
        template = path.read_text()
        same = refused = other = 0
        for conversation in CONVERSATIONS:
            for answer in False, True:
                variables = variables_of(conversation, answer)
                ours.stdin.write((json.dumps({"template": template, "variables": variables, "now": NOW}) + "\n").encode())
                ours.stdin.flush()
                got = json.loads(ours.stdout.readline())
                want = render(template, variables)
                same += want is not None and got == want
                refused += want is None and got is None
                other += got != want
        digest = hashlib.sha256(template.encode()).hexdigest()
        print(digest[:24], f"{same:5}{refused:8}{other:6} ", path.relative_to(folder))


main(sys.argv[1], pathlib.Path(sys.argv[2]))
