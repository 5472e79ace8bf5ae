"""The configuration of Sphinx; `python -m docsite` calls it."""

project = "Plimsoll"
author = "Plimsoll"
extensions = ["myst_parser"]
# `…` stands in shown JSON for what is left out: it is coloured as far as it goes.
suppress_warnings = ["misc.highlighting_failure"]
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "Plimsoll"
html_static_path = ["static"]
html_css_files = ["plimsoll.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f766e", "color-brand-content": "#0f766e"},
    "dark_css_variables": {"color-brand-primary": "#2dd4bf", "color-brand-content": "#2dd4bf"},
}
