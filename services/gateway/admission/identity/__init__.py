"""Who makes a call: keys of the settings, stored keys, tokens; what each may be used for; guesses of keys."""
