"""Many runs: studies, promotion, the paper loop.

Read `space` (what is searched), `trial` (what a trial is, and the settings of a study), `pruning` (which trials are
hopeless), `search` (what is tried next), `course` (the whole policy of a study, without processes or rows), `study`
(its rows), `outcome` (what a training is worth), `beginning` (how a study begins, and what it must keep),
`overfitting` (what choosing the best of many trials is worth), `verdict` (the winner's one look at the test split),
`view` (a study as one looks at it), `listing` (what is shown of it) and `report` (the page and the charts).
`service.studies` carries studies out.
"""
