# An image with one static program, e.g. CoreDNS; stand-in for the published one.
FROM scratch
COPY program /program
ENTRYPOINT ["/program"]
