"""Self-contained HTML pages: a run or a comparison (`tacit report`), and live pages (`tacit watch`).

World text and model output are untrusted: templates escape all text, data for the script is JSON that cannot close its element,
the script writes text only, and the page forbids every script but its own.
"""
