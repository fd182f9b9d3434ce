"""What a policy is worth on data it never saw: play, measures, intervals, baselines, trades."""
