"""Builds the site into site/, offline: python docs/generator/build.py [OUT]. A dead link or a warning is an error."""

import sys
import tempfile
from pathlib import Path

from contents import ROOT
from links import dead_links
from sources import write_sources
from sphinx.cmd.build import build_main

from uncollapse.files import new_folder


def main(out: Path) -> None:
    """Build beside `out`, check, and put the result in its place."""
    if out.exists() and not (out / "searchindex.js").is_file():
        sys.exit(f"{out} is there and is no site; give the name of a new folder.")
    with tempfile.TemporaryDirectory() as folder, new_folder(out, replace=True) as site:
        source, trees = Path(folder) / "source", Path(folder) / "trees"
        source.mkdir()
        write_sources(source)
        settings = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(Path(__file__).parent), "-d", str(trees)]
        if build_main([*settings, str(source), str(site)]):
            sys.exit("the site was not built: see above.")
        dead = dead_links(site)
        if dead:
            sys.exit("\n".join([*dead, f"{len(dead)} dead links: the site was not built."]))
    print(f"site: {out / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site")
