"""Make a small MNIST-like data set offline: 28x28 gray PNG files, one folder per digit.

    python examples/make_mnist.py --out data/mnist_png --per_class 40

gives data/mnist_png/training/<0-9>/*.png and, with a quarter as many files, data/mnist_png/testing/<0-9>/*.png.
The same arguments write the same files again.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIZE = 28
SCALE = 4  # drawn this much larger, then reduced: smooth edges


def arc(cx, cy, rx, ry, start, end):
    """Points along an ellipse, angles in degrees, clockwise from the right as the y axis points down."""
    angles = [math.radians(start + (end - start) * k / 16) for k in range(17)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


# Each digit is a list of strokes; a stroke is a list of points in a square from (0, 0) top left to (1, 1).
STROKES = {
    0: [arc(0.5, 0.5, 0.3, 0.45, 0, 360)],
    1: [[(0.3, 0.25), (0.55, 0.05), (0.55, 0.95)]],
    2: [arc(0.5, 0.3, 0.28, 0.25, -170, 40) + [(0.2, 0.95), (0.8, 0.95)]],
    3: [arc(0.45, 0.28, 0.28, 0.23, -150, 90) + arc(0.45, 0.72, 0.32, 0.23, -90, 150)],
    4: [[(0.62, 0.95), (0.62, 0.05), (0.15, 0.65), (0.85, 0.65)]],
    5: [[(0.75, 0.05), (0.3, 0.05), (0.27, 0.45)] + arc(0.47, 0.67, 0.3, 0.27, -120, 150)],
    6: [[(0.65, 0.05), (0.35, 0.35)] + arc(0.5, 0.68, 0.27, 0.27, -160, 200)],
    7: [[(0.2, 0.05), (0.8, 0.05), (0.4, 0.95)]],
    8: [arc(0.5, 0.28, 0.23, 0.22, 0, 360), arc(0.5, 0.73, 0.28, 0.23, 0, 360)],
    9: [arc(0.5, 0.32, 0.27, 0.27, 0, 360), [(0.77, 0.32), (0.65, 0.95)]],
}


def draw(digit, rng):
    """One image: the strokes turned, slanted, stretched and shifted a little, with noise on top."""
    turn, slant = rng.uniform(-0.2, 0.2), rng.uniform(-0.25, 0.25)
    width, height = rng.uniform(15, 20), rng.uniform(17, 21)
    right, down = rng.uniform(-2.5, 2.5, size=2)
    pen = rng.uniform(1.6, 2.8)

    def place(point):
        x, y = (point[0] - 0.5) * width, (point[1] - 0.5) * height
        x -= slant * y
        x, y = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
        return ((x + right + SIZE / 2) * SCALE, (y + down + SIZE / 2) * SCALE)

    large = Image.new("L", (SIZE * SCALE, SIZE * SCALE))
    canvas = ImageDraw.Draw(large)
    for stroke in STROKES[digit]:
        canvas.line([place(point) for point in stroke], fill=255, width=round(pen * SCALE), joint="curve")
    small = np.asarray(large.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float64)
    noisy = small * rng.uniform(0.75, 1.0) + rng.normal(0, 14, small.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def make(out, per_class, seed):
    for split, (name, count) in enumerate({"training": per_class, "testing": max(1, per_class // 4)}.items()):
        for digit in STROKES:
            folder = out / name / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                rng = np.random.default_rng([seed, split, digit, number])
                draw(digit, rng).save(folder / f"{number:05}.png")
        print(f"{out / name}: {count * len(STROKES)} images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/mnist_png"))
    parser.add_argument("--per_class", type=int, default=40, help="training images of each digit")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.per_class < 1:
        parser.error(f"--per_class {args.per_class}: at least one image of each digit is needed")
    make(args.out, args.per_class, args.seed)
