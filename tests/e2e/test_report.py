"""`nestling report` in a browser: it reads without a network and a script, wide and narrow."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests import small_models
from tests.unit.test_report import Odd, run_of
from toolkit.search.records import Records
from toolkit.search.result import SECONDS

Run = Callable[..., tuple[str, str]]
SECTIONS = ("result", "progress", "time", "speed", "quality", "failures", "schedules")

PROBE = """<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => { d.open = true });
  const seen = e => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0 };
  const covered = [];
  document.querySelectorAll("svg.chart").forEach(svg => {
    const texts = [...svg.querySelectorAll("text")].filter(seen);
    const area = svg.getBoundingClientRect();
    texts.forEach((a, i) => {
      const p = a.getBoundingClientRect();
      if (p.left < area.left - 1 || p.right > area.right + 1 || p.bottom > area.bottom + 1)
        covered.push([a.textContent, "outside"]);
      texts.slice(i + 1).forEach(b => {
        const q = b.getBoundingClientRect();
        const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (wide > 1 && high > 4) covered.push([a.textContent, b.textContent]);
      });
    });
  });
  const wide = [...document.querySelectorAll("body *")].filter(e => seen(e)
    && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, nav"));
  const small = [...document.querySelectorAll("svg.chart text")].filter(seen)
    .filter(t => t.getBoundingClientRect().height < 9 && t.textContent.length > 0);
  parent.postMessage({
    width: innerWidth, scroll: document.documentElement.scrollWidth, covered: covered,
    wide: wide.map(e => e.outerHTML.slice(0, 80)), small: small.length,
    charts: document.querySelectorAll("svg.chart").length,
    ink: getComputedStyle(document.body).color,
  }, "*");
});
</script>"""

FRAME = """<body><script>
addEventListener("message", m => { document.body.dataset.found = JSON.stringify(m.data) });
</script><iframe src="probed.html" width="WIDTH" height="900"></iframe></body>"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of made-up costs, with failures of several kinds."""
    path = tmp_path_factory.mktemp("made") / "net.records.db"
    run_of(path, Odd())
    return path


@pytest.fixture(scope="module")
def page(database: Path) -> Path:
    """Its page."""
    from toolkit.cli import run

    path = database.with_name("page.html")
    assert run(["report", str(database), "-o", str(path), "-q"]) == 0
    return path


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """Return the document that Chromium makes of a page, with no network, and what it logs."""
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom",
            "--virtual-time-budget=4000", *flags, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@dataclass
class Document(HTMLParser):
    """The facts of a document that tests ask for."""

    text: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str, style: str = "") -> list[dict[str, str | None]]:
        """Return the attributes of elements by tag and class."""
        return [
            a for t, a in self.tags if t == tag and (not style or style in (a.get("class") or ""))
        ]


@pytest.mark.needs("chromium")
def test_the_page_opens_without_network_script_or_complaint(
    page: Path, database: Path, tmp_path: Path
) -> None:
    dom, log = opened(page, tmp_path)
    assert "CONSOLE" not in log, log
    document = Document(dom)
    assert {a.get("id") for a in document.all("section")} == set(SECTIONS)
    assert not document.all("script")
    for _, attributes in document.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (name, value)
    assert "url(" not in dom
    assert "@import" not in dom
    with Records(database, readonly=True) as records:
        tasks = records.tasks()
        tried = {t.task_key for t in records.trials() if t.round}
        winners = [records.chosen(t.key, SECONDS) for t in tasks]
    assert dom.count('<span class="nodes">') == len(tasks)
    assert len(document.all("figure", "curve")) == len(tried)
    for line in document.all("polyline", "tuned"):
        assert len((line["points"] or "").split()) >= 2
    assert len(document.all("details", "winner")) == len(tried)
    codes = [unescape(c) for c in re.findall(r'<pre class="c"[^>]*>(.*?)</pre>', dom, re.S)]
    assert len(codes) == len(tried)
    assert all("void kernel(float *" in c and c.rstrip().endswith("}") for c in codes)
    traces = [unescape(c) for c in re.findall(r'<pre class="trace"[^>]*>(.*?)</pre>', dom, re.S)]
    first = {repr(w.trace[0]) for w in winners if w is not None and w.trace}
    assert all(any(step in trace for step in first) for trace in traces)
    assert "cc 'a b.c' &amp;&amp; ./a &lt;x" in dom


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_phones_and_desks_and_no_text_covers_another(
    page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    text = re.sub(r"<meta http-equiv=.*?>\n", "", page.read_text())
    (tmp_path / "probed.html").write_text(text.replace("</body>", f"{PROBE}</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom, _ = opened(frame, tmp_path / "profile", scheme, f"--window-size={width + 100},1000")
    found: dict[str, Any] = json.loads(Document(dom).all("body")[0]["data-found"] or "")
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["covered"] == []
    assert found["charts"] >= 4
    red = int(re.findall(r"\d+", found["ink"])[0])
    assert red > 128 if dark else red < 128


@pytest.mark.needs("chromium")
def test_it_prints(page: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.pdf"
    subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={target}", page.as_uri(),
        ],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    data = target.read_bytes()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 60


@pytest.mark.needs("gcc")
def test_tuning_writes_the_page_that_report_writes(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "net.onnx")
    first = tmp_path / "first.html"
    out, _ = nestling("tune", model, "--dim", "N=64", "--trials", "8", "--batch", "4",
                      "--report", first)  # fmt: skip
    assert f"{first}: " in out
    out, _ = nestling("report", model, "--json", tmp_path / "r.json")
    second = tmp_path / "net.report.html"
    assert second.read_text() == first.read_text()
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["trials"] == 8
    assert told["tasks"] == 1
    text = first.read_text()
    assert "GFLOP/s" in text
    assert 'id="K1" class="winner" open' in text
    for name in ("Speed of the kernels under the roofs of this machine", "% of peak", "finished"):
        assert name in text


def test_what_is_no_database_is_refused(nestling: Run, tmp_path: Path) -> None:
    _, err = nestling("report", tmp_path / "net.onnx", code=2)
    assert "net.records.db" in err
    shutil.copy(__file__, tmp_path / "x.db")
    _, err = nestling("report", tmp_path / "x.db", code=2)
    assert "x.db" in err
