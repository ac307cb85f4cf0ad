"""Several methods × worlds × seeds from one file, under one budget, measured alike.

`plan` reads the file, `carry_out` runs what is missing, `collect` reads what the runs say, `table` compares them,
`pages` and `plots` show it, `results` does all of this. A comparison's directory:

    runs/WORLD/start            the run every cell of the world starts from, where the file asks for one
    runs/WORLD/METHOD/SEED      an ordinary run directory for each cell, as `tacit train` makes it;
                                recipe.json is what it was told, console.log what it printed, failure.txt why it failed
    comparison.json             everything below; rewritten whenever a cell ends
    table.md, table.csv         the table
    plots/                      learning-WORLD and thresholds-WORLD, each as .png and .svg

comparison.json, format 1. Shares are between 0 and 1; a null is "not known"; an *evaluation* is what a run's summary.json has
(stage, step, panel, panel_hash, episodes, successes, success, interval, score, steps, success_steps, invalid, …).

    format, name, description, file, command         what was asked for; `command` is a list of words
    versions        code, libraries and machine that wrote this file, as in a run's versions.json
    seeds, worlds, methods, baseline                 lists of names in the file's order; baseline is the first method
    thresholds, confidence                           success shares looked for; 0.95
    complete        true where every cell is finished
    notes           sentences to be shown beside the table (budgets that differ, versions that differ, …)
    differences     {world: [{setting, values, named_by, unequal}]}: settings that two methods of the world have and have
                    otherwise; values by method, named_by the methods whose tables in the file name it, unequal where others
                    differ in it too, by their defaults (the file has to allow that)
    panels          {world: {name, hash, episodes}}; one hash for all cells of a world, or there is no table
    further         {world: [panel]}: names of the further panels that its runs were measured on after each stage
    starts          {world: {run, status, error, command, seed, checkpoint, evaluation}}; evaluation is its last one.
                    Worlds without a shared start are absent
    cells           a list in the order world, method, seed, of
        world, method, seed
        run             the run directory, relative to this file
        status          "finished", "failed", "unfinished" (stopped half way) or "missing" (never begun)
        error           why it failed, else null
        command         the words that made the run
        settings        the resolved recipe, as in settings.json
        versions        of the run, or null
        evaluations     every evaluation there is; an unfinished cell has those up to its newest checkpoint
        start, final, peak                           one evaluation each, or null. start: before the first iteration;
                        final: the last; peak: the best of practice. Only finished cells have final and peak, and rows that
                        learn nothing have final alone
        further         {panel: {start, final}}: the same on the further panels, where they were measured then
        curve           [{step, success, score}]: the start (step 0) and every evaluation of practice
        steps_to        [{threshold, step}]: first measured iteration at or above it; null where never reached
        area            mean height of the success curve over its iterations, or null
        outcomes        the final evaluation's successes in panel order, repeats one after another: [true, false, …]; null
                        for a run of a version that did not keep them
        iterations, episodes, turns, generated_tokens, wall_s, digest      from summary.json; null until finished
    table           a list in the order world, method, of
        world, method, seeds (finished ones), missing (seeds that are not)
        start, final, peak, score, success_length, invalid, ineffective, area
                        each {mean, low, high, per_seed} or null. The interval of start, final and peak holds both the t
                        interval over seeds and the Wilson interval over tasks; the others have one over seeds
                        alone, within their range, and null ends where there is one seed or all seeds are alike
        further         {panel: {start, final}}, each as above
        bootstrap       {low, high} of final success, resampling seeds and tasks, the same for all seeds; null without outcomes
        steps_to        [{threshold, reached, of, median}]: how many of the seeds got there, and the median iteration,
                        null where half of them or more did not
        against         null for the baseline, and where no seed of both is finished; else
            method, seeds           the baseline, and the seeds both have
            difference              {mean, low, high, per_seed} of final success, paired by seed; its interval holds both
                                    the t interval over seeds and the paired one over all episodes (Agresti and Min)
            won, lost, p, p_holm    episodes only this method, only the baseline succeeded in; exact McNemar over
                                    seeds × tasks, and corrected for all comparisons in the table; null without outcomes
            p_seeds, p_seeds_holm   sign-flip test over the seeds alone: what holds for a new seed
    grids           {world: [{panel, columns, rows: [{name, measures}]}]}: start and final of the table's rows as [grid] of the
                    file arranges them, for the world's panel and for each further one; measures as above, or null
"""
