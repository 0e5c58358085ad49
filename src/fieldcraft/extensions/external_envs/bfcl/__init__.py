"""Berkeley Function Calling Leaderboard: its questions and checkers, in another interpreter."""
