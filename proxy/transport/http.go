package transport

import (
	"io"
	"net/http"
	"net/http/pprof"
)

// NewHTTPHandler serves the endpoints an orchestrator asks:
//
//   - /livez answers 200 as long as the process serves at all;
//   - /readyz answers 200, or 503 with the error's text while ready returns one; what lacks
//     returns while it is ready stands behind the "ok";
//   - /metrics is answered by metrics.
//
// ready and lacks are called once per request, from several goroutines at once.
func NewHTTPHandler(ready, lacks func() error, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		text := "ok"
		if err := lacks(); err != nil {
			text += ", but " + err.Error()
		}
		answer(w, http.StatusOK, text)
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// WithProfiles returns a handler that serves what Go's profiler knows of the process below
// /debug/pprof, and everything else by inner.
func WithProfiles(inner http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", inner)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// The peer may be gone; there is nobody left to tell.
	_, _ = io.WriteString(w, text+"\n")
}
