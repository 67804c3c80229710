# What the tests' example workloads run: a shell is all they need.
FROM debian:trixie-slim
CMD ["sh"]
