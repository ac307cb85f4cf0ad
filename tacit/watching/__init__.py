"""A run's report as a page that follows the run: `tacit watch`. Needs the extra `serve`.

    watched      a run that may not have begun, may be written to this moment, or may be gone
    feed         its episodes as they come
    overview     several runs side by side
    app          the pages over HTTP, each with a stamp that says whether there is something new
    watch.js     asks for the page again, and takes over the parts that are new

Nothing here writes into a run.
"""
