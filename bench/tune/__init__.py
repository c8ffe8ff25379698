"""The search for hyper-parameters: space, study, trials, and what comes of them."""
