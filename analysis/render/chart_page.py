"""What a page embeds for its figures: one library, the data of each, and its picture for disabled scripts."""

import base64
import json
import resource
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from analysis.render.chart import MOST_POINTS, chart
from analysis.render.chart_colours import variables
from analysis.render.figure import Figure
from analysis.render.png import write_png

if TYPE_CHECKING:
    import markupsafe

MOST_BYTES = 700_000
"""Most chart data in a page; with the library of 0.9 MB it stays below 2 MB."""
_HERE = Path(__file__).parent


class ChartsOfPage:
    """Collects the figures of a page while it is rendered; `add` returns the HTML of each, `script` draws them.

    Every figure is also written as PNG. Where vl-convert cannot be used, the page holds the PNG instead of a chart.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pictures: list[Path] = []
        self._figures: list[Figure] = []
        self._library: Future[str] | None = None

    @staticmethod
    def style() -> str:
        """Return the CSS of charts."""
        return variables() + "\n" + (_HERE / "chart.css").read_text(encoding="utf-8")

    def add(self, figure: Figure, below: str = "") -> "markupsafe.Markup":
        """Write a figure as PNG and return the HTML that replaces it.

        Args:
            figure: the figure to draw.
            below: folder of its file, relative to the folder of the page.

        Raises:
            StorageError: the file cannot be written.
        """
        from markupsafe import Markup

        if self._library is None:
            # Building the library takes about 2 s outside of Python; matplotlib draws meanwhile.
            pool = ThreadPoolExecutor(1)
            self._library = pool.submit(_library)
            pool.shutdown(wait=False)
        path = write_png(figure, self.folder / below)
        self.pictures.append(path)
        alt = f"{figure.title}. {figure.caption}"
        if not _is_usable():
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, alt)
        self._figures.append(figure)
        source = quote("/".join(filter(None, (below, path.name))), errors="surrogateescape")
        return Markup('<div class="chart"></div>\n<noscript><img src="{}" alt="{}"></noscript>').format(source, alt)

    def script(self) -> str:
        """Return the script that draws every added figure, "" if there is none; safe within <script>."""
        if not self._figures or self._library is None:
            return ""
        most = MOST_POINTS
        while len(data := json.dumps([chart(figure, most) for figure in self._figures], separators=(",", ":"),
                                     allow_nan=False, ensure_ascii=False)) > MOST_BYTES and most > 100:  # fmt: skip
            most //= 2
        code = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("chart_parts.js", "chart.js"))
        # The library keeps its names local: it exports properties of the window.
        return f"(() => {{{_within_script(self._library.result())}\n}})();\n{code}\ndrawCharts({_within_json(data)});"


def _is_usable() -> bool:
    """Whether the library can be had: the V8 of its package ends the process where `ulimit -v` is set."""
    return find_spec("vl_convert") is not None and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def _library() -> str:
    if not _is_usable():
        return ""
    import vl_convert

    # Without a snippet it exports all three libraries as properties of the window; its stubs require one.
    found: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return found


_ESCAPES: Mapping[int, Any] = {ord("<"): "\\u003c", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def _within_json(text: str) -> str:
    return text.translate(_ESCAPES)


def _within_script(code: str) -> str:
    """Return a script without sequences that would end its element; in code they occur only in strings."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
