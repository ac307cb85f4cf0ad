"""One self-contained HTML page for a run or a comparison: `tacit report`.

    writing              which page a directory asks for, and where it goes
    run_files            a run directory, with whatever is broken or missing in it said as a notice
    known                what is known beyond that: where each task is played, what the agent read, the defaults
    provenance           what was run: settings, versions, the command to repeat it
    measures             evaluations panel by panel, final and peak apart
    learning_curves      charts of what every iteration recorded
    skill_shift          what hindsight's skills did: charts, and the tokens of a turn by their shift
    conduct              behaviour, and prompt length over the episode
    viewer, prompts      which trajectories to embed, and what was read at each step
    run_page             the page of a run, from these parts
    comparison_files, comparison_episodes, comparison_page      the same for a comparison
    page, numbers, charts, templates/, page.css, page.js        how a page is written

World text and model output are untrusted: templates escape all text, data for the script is JSON that cannot close its element,
the script writes text only, and the page forbids every script but its own.
"""
