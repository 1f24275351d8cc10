"""The HTML report in a real browser, headless, at the width of a phone and of a desktop.

The page runs in a frame of that width; reader.js uses it as a reader would and hands back what it saw.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from parity.report import html

HERE = Path(__file__).parent
RECORD = json.loads((HERE / "record.json").read_text())
READER = (HERE / "reader.js").read_text()
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--window-size=1600,1000", "--virtual-time-budget=10000", "--dump-dom"),
]
SCHEMES = {"light": "1", "dark": "0"}
VIEWS = [(390, "dark"), (1440, "light")]
WHO = "planted.py:off_by_one"

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} on the path")

FRAME = """<!doctype html><pre></pre>
<script>
addEventListener("message", ({{ data }}) => document.querySelector("pre").textContent = data);
</script>
<iframe src="page.html#{fragment}" width="{width}" height="900"></iframe>"""
BEFORE = """<script>
const errors = [], CELL = {cell}, WHO = {who};
addEventListener("error", ({{ message }}) => errors.push(message));
addEventListener("securitypolicyviolation", ({{ violatedDirective }}) => errors.push(violatedDirective));
</script>"""


def number(**wanted):
    """The number of the one cell of the record with these values."""
    (n,) = (n for n, cell in enumerate(RECORD["cells"]) if wanted.items() <= cell.items())
    return n


def cells(**wanted):
    return {n for n, cell in enumerate(RECORD["cells"]) if all(cell[name] in x for name, x in wanted.items())}


WINDOW = number(subject=WHO, case="window-left", dtype="float32")


@pytest.fixture(scope="module", params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def seen(request, tmp_path_factory):
    """What reader.js saw of the page, opened by a link to the cells that failed."""
    width, scheme = request.param
    where = tmp_path_factory.mktemp("page")
    before = BEFORE.format(cell=WINDOW, who=json.dumps(WHO))
    page = html.render(RECORD).replace("<title>", f"{before}<title>", 1)
    (where / "page.html").write_text(f'{page}<script type="module">{READER}</script>')
    (where / "frame.html").write_text(FRAME.format(width=width, fragment="status=failed,error&dtype=float32"))
    colors = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    address = f"file://{where / 'frame.html'}"
    command = [BROWSER, *FLAGS, colors, f"--user-data-dir={where / 'profile'}", address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    answer = re.search(r"<pre>(.*?)</pre>", done.stdout, re.S)[1]
    assert answer, done.stdout + done.stderr
    return json.loads(unescape(answer))


def test_nothing_goes_wrong_and_nothing_is_fetched(seen):
    assert seen["errors"] == []


def test_a_link_opens_what_it_filters(seen):
    wanted = cells(status=("failed", "error"), dtype=("float32",))
    assert set(seen["first"]["shown"]) == wanted
    assert seen["first"]["said"] == f"{len(wanted)} of 60 cells"
    assert seen["first"]["pressed"] == ["failed 3", "did not run 2", "float32 30"]


def test_the_matrix_can_be_filtered(seen):
    assert (seen["all"]["shown"], seen["all"]["said"], seen["all"]["hash"]) == (60, "60 cells", "")
    wanted = cells(subject=(WHO,), dtype=("float32",))
    assert set(seen["chosen"]["shown"]) == wanted
    assert seen["chosen"]["hash"] == "#dtype=float32&subject=planted.py%3Aoff_by_one"
    assert seen["none"] == {"shown": [], "said": "0 of 60 cells"}


def test_nothing_is_wider_than_the_screen(seen):
    assert [seen[when]["excess"] for when in ("first", "all", "opened")] == [[0, 0]] * 3


def test_text_can_be_read(seen):
    """At a contrast of 4.5 to 1, which WCAG 2 asks for (1.4.3)."""
    for ratio, element in (seen["contrast"], seen["opened"]["contrast"]):
        assert ratio >= 4.5, element


def test_a_cell_shows_its_details(seen):
    opened, tensors = seen["opened"], RECORD["cells"][WINDOW]["tensors"]
    worst = max(tensors, key=lambda tensor: tensor["max_share"])
    assert opened["open"]
    assert opened["titles"][0] == "window-left"
    assert opened["tensors"] == [tensor["name"] for tensor in tensors]
    for text in (
        WHO,
        str(worst["expected"]),
        str(worst["got"]),
        f"{worst['name']}[1, 1, 5, 6]",
        "window(2, 0)",
    ):
        assert text in opened["text"]
    assert opened["heat"] == [f"l{int(digit, 16)}" for line in worst["heat"] for digit in line]
    assert opened["bars"] == worst["histogram"]
    assert opened["mask"] == 1 + 2 + 3 * 12
    assert opened["hash"].endswith(f"cell={WINDOW}")
    assert "dk" in seen["tensor"]
    assert "By head and key" in seen["tensor"]


def test_it_works_by_keyboard(seen):
    """Through the cells that are shown, in the details and in the matrix; one stop of the tab key in all."""
    order = seen["chosen"]["shown"]
    at = order.index(WINDOW)
    assert seen["next"] == RECORD["cells"][order[at + 1]]["case"]
    assert seen["closed"] == {"open": False, "hash": seen["chosen"]["hash"]}
    assert seen["moved"] == [order[at + 1], order[at]]
    assert seen["stops"] == 1
