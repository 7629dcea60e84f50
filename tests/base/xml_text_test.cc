#include "base/xml_text.h"

#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

TEST(XmlText, EscapesWhatHasAMeaning) {
  EXPECT_EQ(XmlText("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; 'd'");
  EXPECT_EQ(XmlText("&lt;"), "&amp;lt;");
  EXPECT_EQ(XmlText(""), "");
}

TEST(XmlText, DropsControlCharactersButThoseThatXmlHas) {
  EXPECT_EQ(XmlText(std::string("a\0b\x01\x1b[31m\x1f", 11)), "ab[31m");
  EXPECT_EQ(XmlText("a\tb\nc\rd"), "a\tb\nc\rd");
}

TEST(XmlText, DropsWhatIsNoUtf8) {
  const std::string letters = "\u00e9\u20ac\U0001f600";  // of two, three and four bytes
  EXPECT_EQ(XmlText(letters), letters);
  EXPECT_EQ(XmlText("caf\xc3"), "caf");                 // cut within a letter
  EXPECT_EQ(XmlText("\xe2\x82<\xf0\x9f\x98"), "&lt;");  // the same, before another letter
  EXPECT_EQ(XmlText("a\xe9 b\x80"), "a b");             // Latin-1; a byte that only goes on
  EXPECT_EQ(XmlText("\xc0\xbc\xe0\x80\xbc\xf0\x80\x80\xbc"),
            "");  // '<' in more bytes than it needs
  EXPECT_EQ(XmlText("\xed\xa0\x80\xef\xbf\xbe\xef\xbf\xbf\xf4\x90\x80\x80\xff"), "");
}

}  // namespace
}  // namespace weft
