"""Off-policy estimation: the return of a policy from data that another policy recorded."""
