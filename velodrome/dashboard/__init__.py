"""The service and the store in a browser: an API, live events and the pages, behind a token.

Read `settings` (what a server is told), `login` (its token), `answers` (what operations take and give), `guard` (who is
let through), `index` (all runs at a glance), `curves` (thinned for people), `machine` and `tasks`, `site` (all of it
together), `api` (the operations), `live` (what changes, as events), `openapi`, `app` (the application), `server` (its
process beside the scheduler's) and `top` (the first page in a terminal).
"""
