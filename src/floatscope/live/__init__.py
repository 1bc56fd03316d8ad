"""The live page: a local server that denoises what is typed into it and streams every step to the report's player."""
