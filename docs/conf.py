"""The documentation: ``sphinx-build -W --keep-going -b html docs docs/_build/html``.

Nothing is fetched while it is built, and nothing on a page comes from elsewhere.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]

from reference import page_names  # noqa: E402

from kcalc.version import __version__  # noqa: E402

project = "kcalc"
author = "The kcalc developers"
copyright = "The kcalc developers"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "mathml",
    "pictures",
    "reference",
    "catalogue",
    "layout",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "_generated", "**.ipynb_checkpoints"]
html_math_renderer = "mathml"
myst_enable_extensions = [
    "dollarmath",
    "amsmath",
    "colon_fence",
    "deflist",
    "attrs_inline",
    "smartquotes",
]
myst_heading_anchors = 3
myst_links_external_new_tab = False
nb_execution_mode = "off"  # notebooks are stored with small outputs; .ci/check executes them
nb_number_source_lines = False
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_ipywidgets_js = {}
myst_fence_as_directive = []

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_google_docstring = False
napoleon_use_ivar = True
autosummary_generate = True
autosummary_filename_map = page_names(
    "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("reference/*.md"))
)
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = False  # signatures with added options have no source
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:(class|data|obj|exc|attr)", r"(?!kcalc\.).*")]

html_theme = "furo"
html_title = f"kcalc {__version__}"
html_static_path = ["_static"]
html_css_files = ["kcalc.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"top_of_page_buttons": []}


def _notebooks() -> None:
    """The notebooks, where Sphinx finds them; those that are gone are gone here too."""
    target = HERE / "notebooks"
    target.mkdir(exist_ok=True)
    wanted = {path.name: path for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
    for stale in target.iterdir():
        if stale.name not in wanted:
            stale.unlink()
    for name, path in wanted.items():
        if not (target / name).exists() or (target / name).read_bytes() != path.read_bytes():
            shutil.copyfile(path, target / name)


_notebooks()
