"""One self-contained HTML page for a run or a comparison: `tacit report`.

    reading        a run directory, with whatever is broken or missing in it said as a notice
    provenance     what was run: settings, versions, the command to repeat it
    measures       evaluations with intervals, by family, final and peak apart
    curves         learning curves
    conduct        behaviour, alarms, prompt length over the episode
    episodes       which trajectories to embed, and what is said of each step
    prompts        prompts as they were read, from the record or by playing the actions again
    run_page, comparison_page                      the pages, from these parts
    markup, charts, tables, assembly, page.css, page.js      how a page is written

World text and model output are untrusted: every string goes through `markup`, data for the script is embedded as JSON that
cannot close its element, the script writes text only, and the page forbids every script but its own.
"""
