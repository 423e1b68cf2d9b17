"""A corpus made offline: English-looking sentences from a small grammar, the same text for the same seed everywhere.

    python examples/text.py --chars 100000 > corpus.txt
"""

import argparse
import random
import sys

GRAMMAR = {
    "sentence": ["{clause}.", "{clause}, {link} {clause}.", "{when}, {clause}.", '"{clause}," said {person}.'],
    "clause": ["{thing} {verb} {thing}", "{person} {verb} {thing}", "{person} {verb} {thing} {where}"],
    "thing": ["the {noun}", "the {quality} {noun}", "a {quality} {noun} of the {noun}"],
    "person": ["the miller", "the captain", "her brother", "an old friend", "the teacher", "Ada", "Tomas"],
    "noun": ["river", "lantern", "letter", "garden", "engine", "mountain", "harbour", "clock", "song", "winter"],
    "quality": ["quiet", "broken", "golden", "narrow", "patient", "distant", "sudden", "careful"],
    "verb": ["carried", "remembered", "opened", "followed", "painted", "repaired", "lost", "found", "crossed"],
    "where": ["by the sea", "under the bridge", "in the market", "beyond the hill", "near the old mill"],
    "when": ["in the morning", "after the rain", "long ago", "every summer", "before the storm"],
    "link": ["and", "but", "because", "while", "until"],
}


def expand(symbol: str, rng: random.Random) -> str:
    rule = rng.choice(GRAMMAR[symbol])
    parts = []
    for piece in rule.split("{"):
        name, brace, rest = piece.partition("}")
        parts.append(expand(name, rng) + rest if brace else piece)
    return "".join(parts)


def make_text(chars: int, seed: int = 0) -> str:
    """Exactly `chars` characters, four sentences a line. Does not touch the global random stream."""
    rng = random.Random(seed)
    lines, size = [], 0
    while size < chars:
        sentences = (expand("sentence", rng) for _ in range(4))
        # The first letter, not str.capitalize(), which would put the names of people into lower case.
        line = " ".join(s[:2].upper() + s[2:] if s[0] == '"' else s[0].upper() + s[1:] for s in sentences) + "\n"
        lines.append(line)
        size += len(line)
    return "".join(lines)[:chars]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chars", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.stdout.write(make_text(args.chars, args.seed))
