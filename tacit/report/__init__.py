"""Self-contained HTML pages: a run or a comparison (`tacit report`), and live pages (`tacit watch`).

    run_files            reads run and comparison directories; broken files become notices on the page
    run_page             the page of a run: headline, evaluations, curves, behavior, provenance
    method_sections      sections of single methods: clusters, skills, experience bank, dictionary
    viewer               the trajectories on a page, with their prompts
    comparison_page      the page of a comparison; writes report.html for a directory
    live                 pages that follow runs; `serving/live.py` serves them
    dictionary           a skill dictionary's history, for `tacit inspect`
    page, charts, templates/, page.css, page.js, live.js        rendering

World text and model output are untrusted: templates escape all text, data for the script is JSON that cannot close its element,
the script writes text only, and the page forbids every script but its own.
"""
