"""What the README says about the examples is what is there."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ("onward.init()", "run.protect(", "run.steps(", "with step:", "step.committed")


def test_the_diff_of_the_smallest_script_is_what_the_readme_shows() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "shows all that changes: these lines, and `run.batches` in the place of" in readme
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    plain, ours = ((ROOT / "examples" / path).read_text().splitlines() for path in ("plain/ddp_min.py", "ddp_min.py"))
    added = [line[2:] for line in difflib.ndiff(plain, ours) if line.startswith("+ ") and line[2:].strip()]
    for word in LIBRARY:
        assert word in snippet
        assert any(word in line for line in added), f"{word} is not in the diff"
    drawing = ("run.batches(", "in batches", "TensorDataset")
    told = (*LIBRARY, *drawing, "import onward", "onward run ", "run.rank", "step.index")
    beyond = [line for line in added if not any(word in line for word in told)]
    assert [line.strip() for line in beyond] == ["loss = train(model, optimizer, x, y)"], "that one is only indented"
