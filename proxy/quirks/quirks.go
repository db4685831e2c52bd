// Package quirks is the one table of what single SDKs need and others must not
// get, keyed by the client's language and version. Each row says why it is
// there, and has a test.
package quirks

import "strings"

// Language is the SDK's language as the x-mq-language header names it.
type Language string

// The languages of the official SDKs. Others are kept as they are sent.
const (
	Java   Language = "JAVA"
	Go     Language = "GO"
	NodeJS Language = "HTTP" // what the Node.js SDK really sends
	Python Language = "PYTHON"
	Rust   Language = "RUST"
	DotNet Language = "DOTNET"
	CPP    Language = "CPP"
)

// ParseLanguage returns the language a header names, in its usual spelling.
func ParseLanguage(header string) Language {
	switch l := strings.ToUpper(strings.TrimSpace(header)); l {
	case "GOLANG":
		return Go
	case "NODE_JS", "NODEJS":
		return NodeJS
	case "DOT_NET":
		return DotNet
	default:
		return Language(l)
	}
}
