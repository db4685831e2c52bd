package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// unreachableError is a server that does not answer.
type unreachableError struct {
	endpoint string
	err      error
}

func (e *unreachableError) Error() string {
	text := e.err.Error()
	if s, ok := status.FromError(e.err); ok {
		text = s.Message()
	}
	advice := `start one with "perigee standalone", or name another with --endpoint`
	switch {
	case strings.Contains(text, "tls:") || strings.Contains(text, "x509:"):
		advice = "--tls and --insecure say how to connect"
	case strings.Contains(text, "server preface"): // a connection, but not one of this protocol
		advice = "the port may take TLS only (--tls), require a PROXY protocol header, or serve something else, such as HTTP"
	}
	return fmt.Sprintf("no server answers at %s (%s); %s", e.endpoint, text, advice)
}

func (e *unreachableError) Unwrap() error { return e.err }

// goneError is a server that has answered and then does so no more.
type goneError struct {
	endpoint string
	done     string // until then
	err      error
}

func (e *goneError) Error() string {
	text := "the server at " + e.endpoint + " went away"
	if e.err != nil {
		text += " (" + status.Convert(e.err).Message() + ")"
	}
	return text + "; until then: " + e.done
}

func (e *goneError) Unwrap() error { return e.err }

// explain turns the error of a call into one for people.
func (a *app) explain(err error) error {
	if err == nil || errors.As(err, new(*goneError)) {
		return err
	}
	switch status.Code(err) {
	case codes.Unavailable:
		if said := status.Convert(err); strings.Contains(said.Message(), mq.ErrUnavailable.Error()+": ") {
			return &statusError{said} // the server has answered: others do not
		}
		return &unreachableError{endpoint: a.endpoint.address, err: err}
	case codes.DeadlineExceeded:
		return fmt.Errorf("%s did not answer in time: %w", a.endpoint.address, err)
	case codes.OK, codes.Unknown:
		return err
	default:
		return &statusError{status.Convert(err)}
	}
}

// statusError is a gRPC status with its code in the protocol's spelling.
type statusError struct{ status *status.Status }

func (e *statusError) Error() string { return codeName(e.status.Code()) + ": " + e.status.Message() }

func (e *statusError) Unwrap() error { return e.status.Err() }

// codeName returns the name of a code in the capitals of gRPC's specification.
func codeName(code codes.Code) string {
	var b strings.Builder
	for i, r := range code.String() {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// errorCode returns a stable name for what kind of error err is.
func errorCode(err error) string {
	var (
		refused     *client.StatusError
		fromAdmin   *statusError
		usage       *usageError
		unreachable *unreachableError
		gone        *goneError
	)
	switch {
	case errors.As(err, &refused):
		return refused.Code.String()
	case errors.As(err, &fromAdmin):
		return codeName(fromAdmin.status.Code())
	case errors.As(err, &usage):
		return "USAGE"
	case errors.As(err, &unreachable), errors.As(err, &gone):
		return "UNREACHABLE"
	case errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded:
		return "TIMEOUT"
	default:
		return "FAILED"
	}
}

func (a *app) printError(err error) {
	if !a.json {
		fmt.Fprintf(a.stderr, "perigee: %v\n", err)
		return
	}
	type failure struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	// There is nowhere left to report that standard error is gone.
	_ = printJSON(a.stderr, struct {
		Error failure `json:"error"`
	}{failure{errorCode(err), err.Error()}})
}
