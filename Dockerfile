FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/perigee ./cmd/perigee \
    && mkdir /out/data

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/perigee /usr/local/bin/perigee
# A new volume takes over the owner of the folder it is mounted on.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
VOLUME /data
# gRPC for clients; HTTP for health, readiness and metrics.
EXPOSE 8081 8088
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s \
    CMD ["/usr/local/bin/perigee", "health", "--http", "127.0.0.1:8088"]
ENTRYPOINT ["/usr/local/bin/perigee"]
CMD ["standalone", "--data-dir", "/data"]
