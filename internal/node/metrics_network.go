package node

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/perigee-mq/perigee/proxy/transport"
)

// A networkReading is what becomes of the connections of clients.
type networkReading struct {
	connections *transport.Limit
	credentials *transport.Credentials
	keyring     *transport.Keyring // nil: no TLS
}

var connectionMetrics = []column[*networkReading]{
	{
		family{"perigee.connections", gauge, none, nil, "Open connections of clients."},
		func(r *networkReading) float64 { return float64(r.connections.Open()) },
	},
	{
		family{"perigee.connections.limit", gauge, none, nil, "How many may be open at once."},
		func(r *networkReading) float64 { return float64(r.connections.Most()) },
	},
}

// A refusal is one reason why connections are closed before they serve calls.
type refusal struct {
	reason      string
	connections uint64
}

var refusalMetrics = []column[refusal]{
	{
		family{"perigee.connections.refused", counter, none, []string{"reason"}, "Connections closed before they served calls: limit is above the limit, protocol is not speaking what the port serves."},
		func(r refusal) float64 { return float64(r.connections) },
	},
}

var tlsMetrics = []column[*transport.Keyring]{
	{
		family{"perigee.tls.reloads", counter, none, nil, "Changed certificates taken over. Without TLS there is neither this nor what follows about certificates."},
		func(k *transport.Keyring) float64 { return float64(k.Reloads()) },
	},
	{
		family{"perigee.tls.reload.failures", counter, none, nil, "Looks at certificates that could not be used; the last good ones stay."},
		func(k *transport.Keyring) float64 { return float64(k.Failures()) },
	},
	{
		family{"perigee.tls.certificate.expiry", gauge, seconds, nil, "When the first of the certificates in use expires, in seconds since 1970."},
		func(k *transport.Keyring) float64 { return float64(k.Expires().Unix()) },
	},
}

// emitNetwork adds what becomes of the connections of clients.
func (m *metrics) emitNetwork(e *emission) {
	r := m.network.Load()
	if r == nil {
		return
	}
	emit(e, connectionMetrics, []*networkReading{r}, noLabels)
	refusals := []refusal{{"limit", r.connections.Refused()}, {"protocol", r.credentials.Refused()}}
	emit(e, refusalMetrics, refusals, func(r refusal) attribute.Set {
		return attribute.NewSet(attribute.String("reason", r.reason))
	})
	if r.keyring != nil {
		emit(e, tlsMetrics, []*transport.Keyring{r.keyring}, noLabels)
	}
}
