"""Turns a template into one HTML file that opens anywhere, without network: pictures, style and script are inside."""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import markupsafe

_HERE = Path(__file__).parent


def render_page(template: str, context: Mapping[str, Any]) -> str:
    """Return the page. Everything from outside is escaped.

    Args:
        template: name of a template of this folder.
        context: what it names; `written`, `css` and `js` are added.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["options"] = _mark_options
    environment.filters["data_uri"] = _data_uri
    files = {name: (_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = environment.get_template(template).render(written=written, **context, **files)
    return page.encode("utf-8", "replace").decode()  # names of files may hold bytes that are no UTF-8


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _mark_options(text: str) -> "markupsafe.Markup":
    """Escape `text`, and set commands in backticks and options apart so that options are not broken over lines."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    marked = re.sub(r"`([^`<]+)`|--[a-z][a-z-]*(?: \d+)?", lambda found: _code(found[1] or found[0]), escaped)
    return markupsafe.Markup(marked)  # noqa: S704 # nosec B704 # its text is escaped


def _code(text: str) -> str:
    return f"<code>{text}</code>"
