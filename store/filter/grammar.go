package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"
)

// The grammar, loosest first:
//
//	or         = and { OR and }
//	and        = not { AND not }
//	not        = { NOT } equality
//	equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
//	comparison = operand { ( "<" | "<=" | ">" | ">=" ) operand
//	           | [ NOT ] ( BETWEEN operand AND operand | IN "(" text { "," text } ")"
//	           | ( CONTAINS | STARTSWITH | ENDSWITH ) text ) }
//	operand    = { "+" | "-" } number | text | TRUE | FALSE | property | "(" or ")"
//
// NOT binds looser than comparisons, as in SQL: NOT a = 1 is NOT (a = 1).
type (
	orTerm struct {
		Terms []*andTerm `parser:"@@ ( 'OR' @@ )*"`
	}
	andTerm struct {
		Terms []*notTerm `parser:"@@ ( 'AND' @@ )*"`
	}
	notTerm struct {
		Nots []string   `parser:"@'NOT'*"`
		Of   *equalTerm `parser:"@@"`
	}
	equalTerm struct {
		First *compareTerm `parser:"@@"`
		Rest  []*equalTail `parser:"@@*"`
	}
	equalTail struct {
		Pos   lexer.Position
		Op    string       `parser:"( @( '=' | '<>' )"`
		Right *compareTerm `parser:"  @@"`
		Is    string       `parser:"| @'IS'"`
		Not   bool         `parser:"  @'NOT'? 'NULL' )"`
	}
	compareTerm struct {
		First *operandTerm   `parser:"@@"`
		Rest  []*compareTail `parser:"@@*"`
	}
	compareTail struct {
		Pos   lexer.Position
		Op    string       `parser:"( @( '<=' | '>=' | '<' | '>' )"`
		Right *operandTerm `parser:"  @@"`
		Not   bool         `parser:"| @'NOT'?"`
		Low   *operandTerm `parser:"  ( 'BETWEEN' @@"`
		High  *operandTerm `parser:"    'AND' @@"`
		In    []string     `parser:"  | 'IN' '(' @Text ( ',' @Text )* ')'"`
		Find  string       `parser:"  | @( 'CONTAINS' | 'STARTSWITH' | 'ENDSWITH' )"`
		Text  string       `parser:"    @Text ) )"`
	}
	operandTerm struct {
		Pos     lexer.Position
		Signs   []string `parser:"( @( '+' | '-' )*"`
		Decimal string   `parser:"  ( @Decimal"`
		Integer string   `parser:"  | @Integer )"`
		Text    *string  `parser:"| @Text"`
		Boolean string   `parser:"| @( 'TRUE' | 'FALSE' )"`
		Null    bool     `parser:"| @'NULL'"`
		Name    string   `parser:"| @Name"`
		Inside  *orTerm  `parser:"| '(' @@ ')' )"`
	}
)

// keywords are taken in any case, and are no names of properties.
const keywords = "AND BETWEEN CONTAINS ENDSWITH FALSE IN IS NOT NULL OR STARTSWITH TRUE"

// A grammar is the parser with what it takes to give it tokens.
type grammar struct {
	parser *participle.Parser[orTerm]
	lexer  lexer.Definition
	elided []lexer.TokenType
	symbol lexer.TokenType // of operators
}

// theGrammar returns the one grammar, which is safe for concurrent use. It is made on
// first use: most runs of the program have none.
var theGrammar = sync.OnceValue(func() *grammar {
	rules := lexer.MustSimple([]lexer.SimpleRule{
		{Name: "Space", Pattern: `\s+`},
		{Name: "Comment", Pattern: `--[^\n]*|/\*(?s:.*?)\*/`},
		{Name: "Text", Pattern: `'(?:[^']|'')*'`},
		{Name: "Decimal", Pattern: `(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+`},
		{Name: "Integer", Pattern: `[0-9]+[lL]?`},
		{Name: "Name", Pattern: `[A-Za-z_$][A-Za-z0-9_$]*`},
		{Name: "Symbol", Pattern: `<>|<=|>=|[=<>(),+-]`},
		{Name: "Keyword", Pattern: `\b\B`}, // names become keywords, nothing else is one
	})
	symbols := rules.Symbols()
	reserved := map[string]bool{}
	for word := range strings.FieldsSeq(keywords) {
		reserved[word] = true
	}
	parser := participle.MustBuild[orTerm](
		participle.Lexer(rules),
		participle.Elide("Space", "Comment"),
		participle.Map(func(t lexer.Token) (lexer.Token, error) {
			if word := strings.ToUpper(t.Value); reserved[word] {
				t.Type, t.Value = symbols["Keyword"], word
			}
			return t, nil
		}, "Name"),
		participle.UseLookahead(2),
	)
	return &grammar{
		parser: parser, lexer: parser.Lexer(), symbol: symbols["Symbol"],
		elided: []lexer.TokenType{symbols["Space"], symbols["Comment"]},
	}
})

// parse returns the tree of an expression. Its depth is bounded: trees are walked by
// recursion.
func (g *grammar) parse(expression string) (*orTerm, error) {
	tokens, err := g.lexer.Lex("", strings.NewReader(expression))
	if err != nil {
		return nil, syntax(expression, err)
	}
	peeker, err := lexer.Upgrade(tokens, g.elided...)
	if err != nil {
		return nil, syntax(expression, err)
	}
	if err := g.checkDepth(*peeker); err != nil {
		return nil, err
	}
	tree, err := g.parser.ParseFromLexer(peeker)
	if err != nil {
		return nil, syntax(expression, err)
	}
	return tree, nil
}

// checkDepth looks at a copy of the tokens.
func (g *grammar) checkDepth(tokens lexer.PeekingLexer) error {
	depth := 0
	for t := tokens.Next(); !t.EOF(); t = tokens.Next() {
		if t.Type != g.symbol {
			continue
		}
		switch t.Value {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth > MaxDepth {
			return refuse(t.Pos, "more than %d parentheses inside each other", MaxDepth)
		}
	}
	return nil
}

// syntax says what the parser did not understand. Its own words name the rules of a
// grammar that nobody knows.
func syntax(expression string, err error) error {
	var unexpected *participle.UnexpectedTokenError
	if errors.As(err, &unexpected) {
		if unexpected.Unexpected.EOF() {
			return refuse(unexpected.Position(), "the expression ends where more is expected")
		}
		return refuse(unexpected.Position(), "unexpected %s", shorten(unexpected.Unexpected.Value))
	}
	var other participle.Error
	if !errors.As(err, &other) {
		return fmt.Errorf("filter expression: %w", err)
	}
	at := other.Position()
	switch rest := expression[min(at.Offset, len(expression)):]; {
	case strings.HasPrefix(rest, "'"):
		return refuse(at, "a text begins that does not end")
	case strings.HasPrefix(rest, "/*"):
		return refuse(at, "a comment begins that does not end")
	default:
		for _, r := range rest {
			return refuse(at, "unexpected %q", r)
		}
		return refuse(at, "the expression ends where more is expected")
	}
}
