"""One self-contained HTML page for a run or a comparison: `tacit report`.

    reading              a run directory, with whatever is broken or missing in it said as a notice
    known                what a page may be told beyond that: the world, its tasks, the context, the defaults
    provenance           what was run: settings, versions, the command to repeat it
    measures             evaluations with intervals, by family, final and peak apart
    curves               learning curves
    conduct              behaviour, alarms, prompt length over the episode
    episodes, prompts    which trajectories to embed, and what was read at each step
    run_page             the page of a run, from these parts

    comparison_reading, comparison_parts, comparison_page      the same for a comparison
    markup, numbers, tables, charts, forest, assembly, page.css, page.js      how a page is written

World text and model output are untrusted: every string goes through `markup`, data for the script is embedded as JSON that
cannot close its element, the script writes text only, and the page forbids every script but its own.
"""
