"""Dead links in a built site: to files, to places on a page, and to anything that is loaded from elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class PageParser(HTMLParser):
    """The links of a page, what it loads, and the places that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect what one tag has."""
        values = {name: value for name, value in attributes if value}
        self.places.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])


def dead_links(site: Path) -> list[str]:
    """One sentence for each link that leads nowhere; the web is not asked, and nothing may be loaded from it."""
    pages = {path: PageParser(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    found.append(f"{where} loads {target} from elsewhere")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.is_file():
                found.append(f"{where} links to {target}, which is not there")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].places:
                found.append(f"{where} links to {target}, and there is no such place on that page")
    return found
